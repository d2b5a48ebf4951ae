"""A run in a store: brought to what its directory holds, in an order that leaves nothing half-visible at any moment."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from time import perf_counter
from typing import Final, final

from trainwright.checkpoints.base import Store
from trainwright.checkpoints.checkpoints import Checkpoints
from trainwright.checkpoints.open import open_store
from trainwright.checkpoints.within import within
from trainwright.errors import DamagedCheckpointError, RunTakenUpError
from trainwright.files import TEMPORARY_SUFFIX, sha256_of_bytes, sha256_of_file
from trainwright.manifest import MANIFEST, RETENTION, RETIRED, SEGMENTS, Checkpoint, Manifest
from trainwright.newruns import storing
from trainwright.rundir import ENVELOPE, EVIDENCE, EVIDENCE_SHA256, SEALED, RunDirectory
from trainwright.seals import seals_in

RUNS: Final = "runs"
CHECKPOINTS: Final = "checkpoints"
OF_END: Final = (  # the seal is last
    *("steps.jsonl", "validations.jsonl", "events.jsonl", "result.json"),
    *(EVIDENCE, EVIDENCE_SHA256, ENVELOPE),
)
RECORDS: Final = tuple(
    pattern for pattern in SEALED if pattern not in OF_END and not pattern.startswith(f"{CHECKPOINTS}/")
)
COPY_BYTES: Final = 1 << 20


def key_of_run(run_id: str) -> str:
    """Give where the copy of a run lies in a store."""
    return f"{RUNS}/{run_id}"


def copy_in(store: Store, run_id: str) -> Store:
    """Give the part of a store that is the copy of one run."""
    return within(store, key_of_run(run_id))


@dataclass(frozen=True, slots=True)
class Uploaded:
    """A checkpoint whose manifest went up. `size_bytes` are those that were sent: segments already there are not."""

    checkpoint: str
    size_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Synced:
    """What one sync did. `damaged`: checkpoint → why it stays here; `passed_over`: removed here on their way up."""

    uploaded: Sequence[Uploaded] = ()
    damaged: dict[str, str] = field(default_factory=dict)
    passed_over: Sequence[str] = ()
    retired: Sequence[str] = ()
    records: int = 0
    size_bytes: int = 0
    seconds: float = 0.0


@final
class Mirror:
    """The copy of one run in `store`, which is the part of a store that is this run's alone.

    `sync` may be cut anywhere and called again, by another process too: what it left is completed or removed.
    `tell` hears of each checkpoint as its manifest has gone up.
    """

    def __init__(self, run: RunDirectory, store: Store, tell: Callable[[Uploaded], None] = lambda _: None) -> None:
        self._run = run
        self._store = store
        self._tell = tell
        self._here = Checkpoints(open_store(run.checkpoints))
        self._there = Checkpoints(within(store, CHECKPOINTS))
        self._put: dict[str, str] = {}  # key → SHA-256 of the record that this object put there
        self._in_store: set[str] = set()  # checkpoints with a manifest there
        self._leftovers = True  # of a sync that was cut; what this object leaves itself, it notes here

    def check_claim(self) -> None:
        """Errors: RunTakenUpError when the store holds an attempt at this run that is none of this directory's."""
        self._check_claim(self._store.keys("attempts/"))

    def pending(self) -> list[str]:
        """Give the checkpoints here that no sync of this object found or put in the store, oldest first."""
        kept = (one for one in self._here.committed() if one.name not in self._in_store)
        return [one.name for one in kept if self._here.retired(one) is None]

    def sync(self) -> Synced:
        """Bring the store to what the run directory holds now, and say what was done.

        Records go first, for a checkpoint rests on them; then checkpoints, the newest first, each with its manifest
        last; then what was retired; then what the end made. Errors: RunTakenUpError, and nothing was written; of the
        store: StoreRefusedError, StoreUnavailableError, StoreError.
        """
        began = perf_counter()
        try:
            return replace(self._sync(), seconds=perf_counter() - began)
        except BaseException:
            self._leftovers = True
            raise

    def _sync(self) -> Synced:
        saved = sorted(self._here.committed(), reverse=True)
        there = frozenset(self._store.keys())
        self._check_claim([key for key in there if key.startswith("attempts/")])
        self._in_store = {one.name for one in saved if f"{CHECKPOINTS}/{one.name}/{MANIFEST}" in there}
        self._claim()
        done = self._put_records(RECORDS, there, Synced())
        for checkpoint in saved:
            done = self._bring(checkpoint, there, done)
        if self._leftovers:
            self._store.sweep()
            self._there.sweep()
            self._leftovers = False
        if seals_in(self._run.path) and self._run.read_result() is not None:
            self._drop_other_seals(there)
            done = self._put_records(OF_END, there, done)
        return done

    # -- whose run it is ---------------------------------------------------------------------------------------------

    def _check_claim(self, keys: Sequence[str]) -> None:
        ours = {f"attempts/{attempt.number}/start.json": attempt.start_file for attempt in self._run.attempts()}
        for key in keys:
            if key.endswith("/start.json") and (key not in ours or self._store.get(key) != ours[key].read_bytes()):
                raise RunTakenUpError(
                    f"{self._run.id}: {key} in the store is not of {self._run.path}: the run was taken up elsewhere, "
                    "and nothing more of this directory goes there; go on with it by its URL in the store, or start a "
                    "new run from this one: trainwright resume RUN KEY=VALUE"
                )

    def _claim(self) -> None:
        for attempt in self._run.attempts():
            key = f"attempts/{attempt.number}/start.json"
            if key not in self._put:
                data = attempt.start_file.read_bytes()
                if not self._store.put_new(key, data):
                    self._check_claim([key])
                self._put[key] = sha256_of_bytes(data)

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def _bring(self, checkpoint: Checkpoint, there: frozenset[str], done: Synced) -> Synced:
        folder = f"{CHECKPOINTS}/{checkpoint.name}"
        is_there, is_retired = (f"{folder}/{name}" in there for name in (MANIFEST, RETIRED))
        if is_there and is_retired:
            return done
        reason = self._here.retired(checkpoint)
        if reason is None:
            return done if is_there else self._upload(checkpoint, done)
        if is_there and reason == RETENTION:
            self._there.retire([checkpoint])
        elif not is_retired:
            self._store.put(f"{folder}/{RETIRED}", self._bytes_here(checkpoint, RETIRED))
        if not is_there:  # its record alone, once it is no candidate there
            self._store.put(f"{folder}/{MANIFEST}", self._bytes_here(checkpoint, MANIFEST))
        return replace(done, retired=[*done.retired, checkpoint.name])

    def _upload(self, checkpoint: Checkpoint, done: Synced) -> Synced:
        """Bring a checkpoint's segments and files, then its manifest. What is damaged here, stays here."""
        began = perf_counter()
        try:
            manifest = self._here.manifest(checkpoint)
            size = sum(self._sizes_sent(checkpoint, manifest))
            data = self._bytes_here(checkpoint, MANIFEST)
            self._store.put(f"{CHECKPOINTS}/{checkpoint.name}/{MANIFEST}", data)
        except DamagedCheckpointError as error:
            self._leftovers = True
            if checkpoint not in self._here.committed() or self._here.retired(checkpoint) is not None:
                return replace(done, passed_over=[*done.passed_over, checkpoint.name])
            return replace(done, damaged={**done.damaged, checkpoint.name: str(error)})
        uploaded = Uploaded(checkpoint.name, size + len(data), perf_counter() - began)
        self._in_store.add(checkpoint.name)
        self._tell(uploaded)
        return replace(done, uploaded=[*done.uploaded, uploaded], size_bytes=done.size_bytes + uploaded.size_bytes)

    def _sizes_sent(self, checkpoint: Checkpoint, manifest: Manifest) -> Iterator[int]:
        for record in manifest.segments.values():
            key = f"{CHECKPOINTS}/{SEGMENTS}/{record.sha256}"
            if self._store.size(key) != record.size:
                self._store.put(key, self._here.segment_bytes(record))
                yield record.size
        for name, record in manifest.files.items():
            file = self._run.checkpoints / checkpoint.name / name
            self._store.put_file(f"{CHECKPOINTS}/{checkpoint.name}/{name}", file, sha256=record.sha256)
            yield record.size

    def _bytes_here(self, checkpoint: Checkpoint, name: str) -> bytes:
        """Errors: DamagedCheckpointError when the file is not there."""
        return open_store(self._run.checkpoints).get(f"{checkpoint.name}/{name}")

    # -- records -----------------------------------------------------------------------------------------------------

    def _put_records(self, patterns: Sequence[str], there: frozenset[str], done: Synced) -> Synced:
        files = [file for pattern in patterns for file in sorted(self._run.path.glob(pattern)) if file.is_file()]
        for file in files:
            size = self._put_record(file.relative_to(self._run.path).as_posix(), file, there)
            if size is not None:
                done = replace(done, records=done.records + 1, size_bytes=done.size_bytes + size)
        return done

    def _put_record(self, key: str, file: Path, there: frozenset[str]) -> int | None:
        """Put a record as it stands at this moment, unless it is there so; give its bytes where it was put."""
        if key not in self._put and key in there and self._has_all_rows(key, file):
            return None
        with storing(self._run.path), _frozen(self._run, file) as copy:
            sha256, size = sha256_of_file(copy), copy.stat().st_size
            if self._put.get(key) == sha256:
                return None
            self._store.put_file(key, copy, sha256=sha256)
        self._put[key] = sha256
        return size

    def _has_all_rows(self, key: str, file: Path) -> bool:
        """Tell whether the rows of an attempt are there already: they are added, and none is ever changed."""
        is_rows = key.startswith("attempts/") and file.suffix != ".json"
        return is_rows and self._store.size(key) == file.stat().st_size

    def _drop_other_seals(self, there: frozenset[str]) -> None:
        """Remove a seal that is not this directory's, before what it was made over is replaced."""
        for name in there.intersection({EVIDENCE_SHA256, ENVELOPE}):
            file = self._run.path / name
            if not file.is_file() or self._store.get(name) != file.read_bytes():
                self._store.delete(name)
                self._put.pop(name, None)


@contextmanager
def _frozen(run: RunDirectory, file: Path) -> Iterator[Path]:
    """Give a file as it stands: of an attempt's, which may grow while it is read, a copy; the others never change."""
    if run.path / "attempts" not in file.parents:
        yield file
        return
    with NamedTemporaryFile(dir=run.path, suffix=TEMPORARY_SUFFIX) as copy:
        with file.open("rb") as source:
            shutil.copyfileobj(source, copy, COPY_BYTES)
        copy.flush()
        yield Path(copy.name)
