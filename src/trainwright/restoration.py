"""A run directory out of a store, to go on with on another machine: every hash verified, and whole or not there."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import msgspec

from trainwright.checkpoints.base import Store, is_key
from trainwright.checkpoints.checkpoints import Checkpoints
from trainwright.checkpoints.parts import parts_in
from trainwright.checkpoints.within import within
from trainwright.errors import DamagedCheckpointError, InputError
from trainwright.files import TEMPORARY_SUFFIX, atomic_file, make_directory, sync_directory, write_all, write_atomically
from trainwright.manifest import MANIFEST, RETIRED, SEGMENTS, Checkpoint, saved_in
from trainwright.mirror import CHECKPOINTS, OF_END, RECORDS, RUNS
from trainwright.newruns import storing
from trainwright.rundir import RunDirectory

UNFINISHED, REPLACED = ".restoring", ".replaced"  # folders below --runs-dir: what lies a level deeper is no run there
NOT_COPIED: Final = frozenset({"after.jsonl", "report.html"})


class Named(msgspec.Struct, frozen=True):
    """All that is asked of an environment.json."""

    run: str


def is_url(run: str) -> bool:
    return "://" in run


def split_url(url: str) -> tuple[str, str]:
    """Give the store's URL and the run's id of `s3://bucket/prefix/runs/<run id>`. Errors: InputError."""
    store, separator, run = url.rstrip("/").rpartition(f"/{RUNS}/")
    if not separator or not run or "/" in run or store.endswith(":/"):
        raise InputError(f"{url}: is no run in a store; expected its URL, as s3://bucket/prefix/{RUNS}/<run id>")
    return store, run


def restore(store: Store, runs_dir: Path) -> RunDirectory:
    """Write the run directory that `store`, the part of a store that is one run's, is the copy of.

    It gets its name below `runs_dir` once it is whole. A checkpoint of which a file is damaged there comes without that
    file: a resume tells it, and takes the one before. A directory of the same run that holds nothing more is replaced.
    Errors: InputError for no run, another run of that name, one that is ahead, or one that is being trained;
    StoreError of the store, and when the directory cannot be written.
    """
    keys = store.keys()
    run = RunDirectory(runs_dir / _run_id(store, keys))
    unfinished = RunDirectory(runs_dir / UNFINISHED / run.id)
    with storing(runs_dir):
        make_directory(unfinished.path)
        with unfinished.locked():
            try:
                _empty(unfinished.path)
                _pull_checkpoints(store, unfinished)
                for key in _records(store.keys()):  # listed after what rests on them
                    _pull(store, key, unfinished.path / key)
                sync_directory(unfinished.path)
                _take_name(unfinished, run)
            except BaseException:
                shutil.rmtree(unfinished.path, ignore_errors=True)
                raise
            finally:
                _remove_if_empty(unfinished.path.parent)
    return run


def _run_id(store: Store, keys: Sequence[str]) -> str:
    """Give the run's id, as its own record has it. Errors: InputError when there is no run, or its id is no name."""
    if missing := sorted({"run.yaml", "environment.json"}.difference(keys)):
        raise InputError(f"there is no run at this place of the store: {' and '.join(missing)} not found")
    try:
        run = msgspec.json.decode(store.get("environment.json"), type=Named).run
    except (msgspec.MsgspecError, ValueError) as error:
        raise InputError(f"environment.json in the store does not name its run: {error}") from error
    if not is_key(run) or "/" in run:
        raise InputError(f"environment.json in the store names the run {run!r}, which is no id of a run")
    return run


def _records(keys: Sequence[str]) -> list[str]:
    return [key for key in keys if any(_matches(key, pattern) for pattern in (*RECORDS, *OF_END))]


def _matches(key: str, pattern: str) -> bool:
    names, wanted = key.split("/"), pattern.split("/")
    same = len(names) == len(wanted) and all(map(fnmatchcase, names, wanted))
    return same and (names[0] != "attempts" or names[1].isdecimal())


def _pull(store: Store, key: str, path: Path) -> None:
    """Write a record in parts. One that grows meanwhile is taken at the length that it had."""
    make_directory(path.parent)
    size = store.size(key) or 0
    with atomic_file(path) as file:
        for part in parts_in(store, key, size):
            write_all(file, part)


# -- checkpoints -----------------------------------------------------------------------------------------------------


def _pull_checkpoints(store: Store, run: RunDirectory) -> None:
    saved = within(store, CHECKPOINTS)
    checkpoints = Checkpoints(saved)
    retired = {key for key in saved.keys("step-") if key.endswith(f"/{RETIRED}")}
    for checkpoint in checkpoints.committed():
        folder = run.checkpoints / checkpoint.name
        make_directory(folder)
        if f"{checkpoint.name}/{RETIRED}" in retired:
            write_atomically(folder / RETIRED, saved.get(f"{checkpoint.name}/{RETIRED}"))
        else:
            with suppress(DamagedCheckpointError):  # what is damaged there is missing here, and a resume says so
                pull_checkpoint(saved, checkpoint, run.checkpoints)
        write_atomically(folder / MANIFEST, saved.get(f"{checkpoint.name}/{MANIFEST}"))


def pull_checkpoint(saved: Store, checkpoint: Checkpoint, folder: Path) -> None:
    """Write the files and segments of one checkpoint of a store of checkpoints below `folder`, each verified.

    Its manifest is the caller's to write, last. Errors: DamagedCheckpointError; the file in question is then not there.
    """
    checkpoints = Checkpoints(saved)
    manifest = checkpoints.manifest(checkpoint)
    for record in manifest.segments.values():
        path = folder / SEGMENTS / record.sha256
        if not path.exists():
            make_directory(path.parent)
            write_atomically(path, checkpoints.segment_bytes(record))
    for name, record in manifest.files.items():
        saved.get_file(f"{checkpoint.name}/{name}", folder / checkpoint.name / name, sha256=record.sha256)


def pull_whole(saved: Store, checkpoint: Checkpoint, folder: Path) -> Path:
    """Write one checkpoint below `folder`, its manifest last, and give its own folder.

    Errors: InputError when it is there already; DamagedCheckpointError; StoreError.
    """
    own = folder / checkpoint.name
    if own.exists():
        raise InputError(f"{own}: is there already; remove it, or give another folder")
    with storing(folder):
        try:
            make_directory(own)
            pull_checkpoint(saved, checkpoint, folder)
            write_atomically(own / MANIFEST, saved.get(f"{checkpoint.name}/{MANIFEST}"))
        except BaseException:
            shutil.rmtree(own, ignore_errors=True)
            raise
    return own


# -- its name --------------------------------------------------------------------------------------------------------


def _take_name(restored: RunDirectory, run: RunDirectory) -> None:
    old = run.path.parent / REPLACED / run.id
    if run.path.exists():
        with run.locked():
            _check_replaceable(run, restored)
            if run.after.exists():
                write_atomically(restored.after, run.after.read_bytes())
            make_directory(old.parent)
            shutil.rmtree(old, ignore_errors=True)
            run.path.rename(old)
            restored.path.rename(run.path)
    else:
        restored.path.rename(run.path)
    sync_directory(run.path.parent)
    shutil.rmtree(old, ignore_errors=True)
    _remove_if_empty(old.parent)


def _check_replaceable(run: RunDirectory, restored: RunDirectory) -> None:
    """Errors: InputError when `run` is another run, or holds what the copy that was restored does not."""
    for name in ("run.yaml", "environment.json"):
        if not (run.path / name).is_file() or (run.path / name).read_bytes() != (restored.path / name).read_bytes():
            raise InputError(f"{run.path}: is there and is not the run of the store; choose another --runs-dir")
    if more := next(_only_in(run, restored), None):
        raise InputError(
            f"{run.path}: is ahead of the store: {more}; go on with it as it is: trainwright resume {run.id}"
        )


def _only_in(run: RunDirectory, other: RunDirectory) -> Iterator[str]:
    for file in (file for pattern in (*RECORDS, *OF_END) for file in run.path.glob(pattern)):
        name = file.relative_to(run.path).as_posix()
        copy = other.path / name
        if not copy.exists():
            yield f"{name} is not there"
        elif name.endswith("/start.json") and copy.read_bytes() != file.read_bytes():
            yield f"{name} is another one there"
        elif copy.stat().st_size < file.stat().st_size:
            yield f"{name} has more bytes"
    for checkpoint in saved_in(run.checkpoints, of=MANIFEST):
        yield from _only_in_checkpoint(run.checkpoints / checkpoint.name, other.checkpoints / checkpoint.name)
    for file in run.path.rglob("*"):
        place = file.relative_to(run.path)
        if file.is_file() and _is_of_user(place) and not (other.path / place).exists():
            yield f"{place} is not there"


def _only_in_checkpoint(folder: Path, other: Path) -> Iterator[str]:
    if not (other / MANIFEST).exists():
        yield f"{folder.name} is not there"
    elif not (other / RETIRED).exists():
        names = {file.name for file in folder.iterdir() if file.suffix != TEMPORARY_SUFFIX} - {RETIRED}
        yield from (f"{folder.name}/{name} is not whole there" for name in sorted(names) if not (other / name).exists())


def _is_of_user(file: Path) -> bool:
    """Tell whether a file of a run's directory is none of a checkpoint, and none that a copy leaves out."""
    first, second, *_ = *file.parts, ""
    is_saved = first == CHECKPOINTS and (second == SEGMENTS or Checkpoint.named(second) is not None)
    return not is_saved and first not in NOT_COPIED and file.suffix != TEMPORARY_SUFFIX


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def _empty(folder: Path) -> None:
    """Remove what a restoration that was cut left."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
