"""The checkpoints of a run: written files first and manifest last, verified at load, retired by rule.

    step-00000100.a1/{model,optimizer,rest}.safetensors, state.json, manifest.json    segments/<sha256>

What the names and the JSON files mean: `trainwright.manifest`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from trainwright.checkpoints import codec
from trainwright.checkpoints.base import Store, is_key
from trainwright.errors import DamagedCheckpointError, StoreError
from trainwright.files import sha256_of_bytes
from trainwright.manifest import (
    MANIFEST,
    RETENTION,
    RETIRED,
    SEGMENTS,
    Checkpoint,
    FileRecord,
    Manifest,
    Stamp,
    decode_manifest,
    decode_retired,
    encode_manifest,
    encode_retired,
)
from trainwright.state import Segment, State, StateValue


@dataclass(frozen=True, slots=True)
class Pending:
    """A checkpoint whose files are written and which does not count until `commit`."""

    checkpoint: Checkpoint
    manifest: Manifest
    _store: Store
    _discard: Callable[[], None]

    @property
    def optimizer_sha256(self) -> str:
        """Hash of the optimizer's tensors; of no bytes where there are none yet."""
        record = self.manifest.files.get("optimizer.safetensors")
        return record.sha256 if record else sha256_of_bytes(b"")

    @property
    def size_bytes(self) -> int:
        return sum(record.size for record in self.manifest.files.values())

    def commit(self) -> None:
        """Make it count. Errors: StoreError; what was written is removed again."""
        try:
            self._store.put(f"{self.checkpoint.name}/{MANIFEST}", encode_manifest(self.manifest))
        except StoreError:
            self._discard()
            raise


@dataclass(frozen=True, slots=True)
class Found:
    """What a search for the newest valid checkpoint gave: one, loaded, or None; and each that was damaged, with why."""

    loaded: tuple[Checkpoint, Manifest, dict[str, StateValue]] | None
    rejected: Sequence[tuple[Checkpoint, str]]


class Checkpoints:
    """Save, find, load and retire the checkpoints in one store.

    `limits` maps an attempt to the step at which a later one took over; what it saved beyond that is no candidate.
    """

    def __init__(self, store: Store, limits: Mapping[int, int] | None = None) -> None:
        self._store = store
        self._limits = limits or {}
        self._sound: dict[str, int] = {}  # the segments that this process wrote or compared, with their sizes

    def write(self, state: State, *, step: int, stamp: Stamp, time: str) -> Pending:
        """Write the files of a checkpoint. Errors: StoreError; what was written is removed again."""
        return self.prepare(state, step=step, stamp=stamp, time=time)()

    def prepare(self, state: State, *, step: int, stamp: Stamp, time: str) -> Callable[[], Pending]:
        """Give what writes the files, in any one thread, while the tensors of the state stay as they are.

        Errors: StoreError, here for a checkpoint that is saved already, and of the call when it cannot write.
        """
        checkpoint = Checkpoint(step, stamp.attempt)
        if self._store.size(f"{checkpoint.name}/{MANIFEST}") is not None:
            raise StoreError(f"{checkpoint.name}: is saved already; a checkpoint is never written over")
        encoded = codec.encode(state)

        def write() -> Pending:
            files, segments = self._write(checkpoint, encoded)
            manifest = Manifest(step=step, stamp=stamp, time=time, files=files, segments=segments)
            return Pending(checkpoint, manifest, self._store, lambda: self._discard(checkpoint))

        return write

    def _write(
        self, checkpoint: Checkpoint, encoded: codec.Encoded
    ) -> tuple[dict[str, FileRecord], dict[str, FileRecord]]:
        """Write files and segments, each hashed while it is written."""
        with ThreadPoolExecutor(1) as hashing:
            records = {name: hashing.submit(_record_of, parts) for name, parts in encoded.files.items()}
            try:
                segments = {name: self._write_segment(segment) for name, segment in encoded.segments.items()}
                for name, parts in encoded.files.items():
                    self._store.put(f"{checkpoint.name}/{name}", *parts)
            except StoreError:
                self._discard(checkpoint)
                raise
            return {name: record.result() for name, record in records.items()}, segments

    def _write_segment(self, segment: Segment) -> FileRecord:
        """Store a segment unless it is there, sound: one that was damaged since would spoil every later checkpoint."""
        key, name = f"{SEGMENTS}/{segment.sha256}", segment.sha256
        if name not in self._sound:
            data = codec.segment_bytes(segment)
            if self._store.size(key) != len(data) or self._store.get(key) != data:
                self._store.put(key, data)
            self._sound[name] = len(data)
        return FileRecord(self._sound[name], name)

    def _discard(self, checkpoint: Checkpoint) -> None:
        """Remove a save that failed, as far as the store still can; the rest is for `sweep`."""
        with suppress(StoreError):
            self._store.delete(f"{checkpoint.name}/{MANIFEST}")
            for key in self._store.keys(f"{checkpoint.name}/"):
                self._store.delete(key)
            self._drop_unused_segments()

    def committed(self) -> list[Checkpoint]:
        """Give every checkpoint that has a manifest, retired ones too, oldest first."""
        return _named(self._store.keys("step-"), of=MANIFEST)

    def candidates(self, limits: Mapping[int, int] | None = None) -> list[Checkpoint]:
        """Give the checkpoints that can be loaded, newest first, by `limits` or else those of this object."""
        keys = self._store.keys("step-")
        return self._counting(_named(keys, of=MANIFEST), _named(keys, of=RETIRED), limits)

    def _counting(
        self, checkpoints: Iterable[Checkpoint], retired: Iterable[Checkpoint], limits: Mapping[int, int] | None
    ) -> list[Checkpoint]:
        limits = self._limits if limits is None else limits
        return [
            checkpoint
            for checkpoint in sorted(set(checkpoints).difference(retired), reverse=True)
            if checkpoint.step <= limits.get(checkpoint.attempt, checkpoint.step)
        ]

    def manifest(self, checkpoint: Checkpoint) -> Manifest:
        """Read a manifest, verified. Errors: DamagedCheckpointError with the reason."""
        key = f"{checkpoint.name}/{MANIFEST}"
        if self._store.size(key) is None:
            raise DamagedCheckpointError(f"{key}: is missing: the save was interrupted, or the file was removed")
        manifest = decode_manifest(self._store.get(key), key)
        if (manifest.step, manifest.stamp.attempt) != (checkpoint.step, checkpoint.attempt):
            raise DamagedCheckpointError(
                f"{key}: is that of step {manifest.step}, attempt {manifest.stamp.attempt}; the folder was renamed"
            )
        names = (*manifest.files, *(record.sha256 for record in manifest.segments.values()))
        if foreign := next((name for name in names if not is_key(name) or "/" in name), None):
            raise DamagedCheckpointError(f"{key}: names {foreign!r}, which is no file of a checkpoint")
        return manifest

    def load(self, checkpoint: Checkpoint) -> tuple[Manifest, dict[str, StateValue]]:
        """Read one checkpoint, every hash verified. Errors: DamagedCheckpointError with file and reason."""
        manifest = self.manifest(checkpoint)
        files = {name: self._verified(f"{checkpoint.name}/{name}", record) for name, record in manifest.files.items()}
        segments = {name: self._segment(record) for name, record in manifest.segments.items()}
        return manifest, codec.decode(files, segments)

    def _verified(self, key: str, record: FileRecord) -> bytes:
        data = self._sized(key, record.size)
        if sha256_of_bytes(data) != record.sha256:
            raise DamagedCheckpointError(f"{key}: its SHA-256 is not the one in its manifest")
        return data

    def _sized(self, key: str, size: int) -> bytes:
        data = self._store.get(key)
        if len(data) != size:
            raise DamagedCheckpointError(f"{key}: has {len(data)} bytes, its manifest says {size}")
        return data

    def _segment(self, record: FileRecord) -> Segment:
        return self._read_segment(record)[1]

    def segment_bytes(self, record: FileRecord) -> bytes:
        """Read a segment as it is stored, its content verified. Errors: DamagedCheckpointError."""
        return self._read_segment(record)[0]

    def _read_segment(self, record: FileRecord) -> tuple[bytes, Segment]:
        key = f"{SEGMENTS}/{record.sha256}"
        data = self._sized(key, record.size)
        segment = codec.segment_of(data, key)
        if segment.sha256 != record.sha256:
            raise DamagedCheckpointError(f"{key}: its content is not the one of its name")
        return data, segment

    def newest_valid(self, limits: Mapping[int, int]) -> Found:
        """Load the newest checkpoint that verifies; tell which damaged or unfinished ones were passed over, and why."""
        rejected: list[tuple[Checkpoint, str]] = []
        keys = self._store.keys("step-")
        for checkpoint in self._counting(_named(keys), _named(keys, of=RETIRED), limits):
            try:
                return Found((checkpoint, *self.load(checkpoint)), rejected)
            except DamagedCheckpointError as error:
                rejected.append((checkpoint, str(error)))
        return Found(None, rejected)

    def set_aside(self, checkpoint: Checkpoint, reason: str) -> None:
        """Make a damaged checkpoint no candidate any more; its own files stay, to be looked at."""
        self._mark_retired(checkpoint, f"damaged: {reason}")

    def sweep(self) -> None:
        """Remove what interrupted saves left: temporary files, folders without a manifest, unused segments."""
        self._store.sweep()
        whole = {checkpoint.name for checkpoint in self.committed()}
        for key in self._store.keys("step-"):
            folder = key.partition("/")[0]
            if Checkpoint.named(folder) and folder not in whole:  # a copy that the user made has another name
                self._store.delete(key)
        keys = [key for key in self._store.keys("step-") if key.rpartition("/")[2] != MANIFEST]
        with_files = _named(key for key in keys if key.rpartition("/")[2] != RETIRED)
        for checkpoint in set(with_files).intersection(_named(keys, of=RETIRED)):
            if self.retired(checkpoint) == RETENTION:
                self._drop_tensors(checkpoint)
        self._drop_unused_segments()

    def retire(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Remove the tensors of these checkpoints; their manifests stay."""
        for checkpoint in checkpoints:
            self._mark_retired(checkpoint, RETENTION)
            self._drop_tensors(checkpoint)
        if checkpoints:
            self._drop_unused_segments()

    def retired(self, checkpoint: Checkpoint) -> str | None:
        """Say why a checkpoint is no candidate any more; None while it is one."""
        key = f"{checkpoint.name}/{RETIRED}"
        return None if self._store.size(key) is None else decode_retired(self._store.get(key), key)

    def _mark_retired(self, checkpoint: Checkpoint, reason: str) -> None:
        self._store.put(f"{checkpoint.name}/{RETIRED}", encode_retired(reason))

    def _drop_tensors(self, checkpoint: Checkpoint) -> None:
        for key in self._store.keys(f"{checkpoint.name}/"):
            if key.rpartition("/")[2] not in {MANIFEST, RETIRED}:
                self._store.delete(key)

    def _drop_unused_segments(self) -> None:
        stored = self._store.keys(f"{SEGMENTS}/")
        try:
            used = (
                {r.sha256 for c in self.candidates({}) for r in self.manifest(c).segments.values()} if stored else set()
            )
        except DamagedCheckpointError:
            return  # nobody knows what that manifest names; once it is retired or set aside, this is done
        for key in stored:
            name = key.removeprefix(f"{SEGMENTS}/")
            if name not in used:
                self._sound.pop(name, None)
                self._store.delete(key)

    def free_bytes(self) -> int | None:
        return self._store.free_bytes()


def _record_of(parts: Sequence[bytes | memoryview]) -> FileRecord:
    return FileRecord(sum(len(part) for part in parts), sha256_of_bytes(*parts))


def _named(keys: Iterable[str], of: str = "") -> list[Checkpoint]:
    """Give the checkpoints that these keys belong to, or of which the file `of` is among them; oldest first."""
    folders = {folder for folder, _, file in (key.partition("/") for key in keys) if file == (of or file)}
    return sorted(filter(None, map(Checkpoint.named, folders)))


def superseded(
    candidates: Sequence[Checkpoint], *, best: str | None, keep_last: int, keep_every: int | None
) -> list[Checkpoint]:
    """Choose what retention removes: all but the best, the last `keep_last` and each `keep_every`-th step.

    The last one of all stays whatever `keep_last` is: without it there is nothing to resume from.
    """
    newest = sorted(candidates, reverse=True)
    return [
        checkpoint
        for checkpoint in newest[max(keep_last, 1) :]
        if checkpoint.name != best and not (keep_every and checkpoint.step % keep_every == 0)
    ]
