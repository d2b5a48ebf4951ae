"""What checkpoints a store holds, here or away: told from manifests alone, verified by hash, tidied of what none names.

Every function takes a store of checkpoints: a run's `checkpoints` folder, or that part of a store.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Final

import msgspec

from trainwright.checkpoints.base import Store
from trainwright.checkpoints.checkpoints import Checkpoints
from trainwright.checkpoints.parts import sha256_in
from trainwright.errors import DamagedCheckpointError, InputError
from trainwright.manifest import MANIFEST, RETIRED, SEGMENTS, Checkpoint, FileRecord, Manifest, decode_manifest
from trainwright.mirror import RUNS

AT_ONCE: Final = 16  # requests to a store that is far away


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint as its manifest tells it: `state` is kept, retired (its tensors are gone), damaged or incomplete.

    `size_bytes` is what a load reads, segments included; None where no manifest tells it.
    """

    name: str
    step: int
    state: str
    reason: str = ""
    files: int | None = None
    size_bytes: int | None = None
    saved: str | None = None


class Ending(msgspec.Struct, frozen=True):
    """All that is asked of a result.json."""

    attempts: int


class Problem(msgspec.Struct, frozen=True):
    checkpoint: str
    reason: str


def holdings(saved: Store) -> list[Holding]:
    """Give every checkpoint, oldest first. Nothing but manifests is read; what they name is not looked at."""
    folders = _folders(saved.keys("step-"))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(partial(_holding, saved), folders, folders.values()))


def _folders(keys: Sequence[str]) -> dict[Checkpoint, set[str]]:
    """Give checkpoint → the names of its files, oldest first; folders of another name are their user's."""
    found: dict[Checkpoint, set[str]] = {}
    for key in keys:
        folder, _, name = key.partition("/")
        if checkpoint := Checkpoint.named(folder):
            found.setdefault(checkpoint, set()).add(name)
    return dict(sorted(found.items()))


def _holding(saved: Store, checkpoint: Checkpoint, names: set[str]) -> Holding:
    tell = partial(Holding, name=checkpoint.name, step=checkpoint.step)
    if MANIFEST not in names:
        return tell(state="incomplete", reason="it has no manifest: a save or an upload was cut, or is under way")
    key = f"{checkpoint.name}/{MANIFEST}"
    try:
        manifest = decode_manifest(saved.get(key), key)
    except DamagedCheckpointError as error:
        return tell(state="damaged", reason=str(error))
    records = _records(manifest)
    missing = next((name for name in manifest.files if name not in names), None)
    retired = RETIRED in names
    return tell(
        state="retired" if retired else "damaged" if missing else "kept",
        reason=f"{missing} is missing" if missing and not retired else "",
        files=len(records),
        size_bytes=sum(record.size for record in records),
        saved=manifest.time,
    )


def _records(manifest: Manifest) -> list[FileRecord]:
    return [*manifest.files.values(), *manifest.segments.values()]


# -- verify ----------------------------------------------------------------------------------------------------------


def problems(saved: Store) -> list[Problem]:
    """Read every byte of the checkpoints that are kept, and give what is not as its manifest says; none: all is well.

    Errors: StoreError of the store.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(chain.from_iterable(pool.map(partial(_problems, saved), Checkpoints(saved).candidates({}))))


def _problems(saved: Store, checkpoint: Checkpoint) -> list[Problem]:
    checkpoints, found = Checkpoints(saved), []
    try:
        manifest = checkpoints.manifest(checkpoint)
    except DamagedCheckpointError as error:
        return [Problem(checkpoint.name, str(error))]
    for name, record in manifest.files.items():
        if reason := _problem(saved, f"{checkpoint.name}/{name}", record):
            found.append(Problem(checkpoint.name, reason))
    for record in manifest.segments.values():
        try:
            checkpoints.segment_bytes(record)
        except DamagedCheckpointError as error:
            found.append(Problem(checkpoint.name, str(error)))
    return found


def _problem(saved: Store, key: str, record: FileRecord) -> str | None:
    size = saved.size(key)
    if size is None:
        return f"{key}: is missing"
    if size != record.size:
        return f"{key}: has {size} bytes, its manifest says {record.size}"
    is_sound = sha256_in(saved, key, size) == record.sha256
    return None if is_sound else f"{key}: its SHA-256 is not the one in its manifest"


# -- tidy ------------------------------------------------------------------------------------------------------------


def unnamed(saved: Store) -> list[str]:
    """Give the keys that no manifest names: of interrupted saves, of retired checkpoints, segments nobody uses.

    While a manifest that counts cannot be read, no segment and no file of its checkpoint is among them.
    """
    folders = _folders(saved.keys("step-"))
    named: dict[Checkpoint, Manifest | None] = {}
    for checkpoint, names in folders.items():
        if MANIFEST in names and RETIRED not in names:
            try:
                named[checkpoint] = Checkpoints(saved).manifest(checkpoint)
            except DamagedCheckpointError:
                named[checkpoint] = None
    return [*_unnamed_files(folders, named), *_unused_segments(saved, list(named.values()))]


def _unnamed_files(
    folders: Mapping[Checkpoint, set[str]], named: Mapping[Checkpoint, Manifest | None]
) -> Iterator[str]:
    for checkpoint, names in folders.items():
        manifest = named.get(checkpoint)
        if checkpoint in named and manifest is None:
            continue
        marks = {MANIFEST, RETIRED} if MANIFEST in names else set()
        for name in sorted(names - marks - set(manifest.files if manifest else ())):
            yield f"{checkpoint.name}/{name}"


def _unused_segments(saved: Store, manifests: Sequence[Manifest | None]) -> Iterator[str]:
    if all(manifests):
        used = {record.sha256 for manifest in manifests if manifest for record in manifest.segments.values()}
        yield from (key for key in saved.keys(f"{SEGMENTS}/") if key.partition("/")[2] not in used)


def tidy(saved: Store) -> list[str]:
    """Remove what no manifest names, and what interrupted writes left; give the keys. Nothing else may write there."""
    removed = unnamed(saved)
    for key in removed:
        saved.delete(key)
    saved.sweep()
    return removed


def chosen(saved: Store, name: str | None) -> Checkpoint:
    """Give the checkpoint of a name, or the newest that is kept. Errors: InputError with those that there are."""
    candidates = Checkpoints(saved).candidates({})
    wanted = [one for one in candidates if name in {None, one.name}]
    if not wanted:
        known = ", ".join(one.name for one in candidates[:5]) or "none"
        raise InputError(f"there is no checkpoint {name or ''} to be had; kept, newest first: {known}")
    return wanted[0]


# -- whole stores ----------------------------------------------------------------------------------------------------


def runs_in(store: Store) -> list[str]:
    """Give the ids of the runs that a whole store holds."""
    names = (key.split("/") for key in store.keys(f"{RUNS}/"))
    return sorted({parts[1] for parts in names if parts[2:] == ["run.yaml"]})


def has_ended(run: Store) -> bool:
    """Tell whether the newest attempt at a run has its result, by the run's part of a store; if not, it may go on."""
    numbers = [key.split("/")[1] for key in run.keys("attempts/") if key.endswith("/start.json")]
    if run.size("result.json") is None:
        return False
    result = msgspec.json.decode(run.get("result.json"), type=Ending)
    return result.attempts == max((int(number) for number in numbers if number.isdecimal()), default=0)
