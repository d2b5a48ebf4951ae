"""The checkpoints of a run: written files first and manifest last, verified at load, retired by rule.

    step-00000100.a1/{model,optimizer,rest}.safetensors, state.json, manifest.json    segments/<sha256>

A folder without manifest.json is an interrupted save. retired.json says why a checkpoint is no candidate any more
(retention removed its tensors, or it was found damaged); its manifest stays as the record of the save. A manifest
carries the SHA-256 of its own text (with zeros in the place of the hash), so no byte of a checkpoint is unverified.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from trainwright.checkpoints import codec
from trainwright.checkpoints.base import Store, is_key
from trainwright.errors import DamagedCheckpointError, StoreError
from trainwright.files import sha256_of_bytes
from trainwright.state import Segment, State, StateValue

FORMAT = "trainwright-checkpoint/1"
NAME = re.compile(r"step-([0-9]{8,})\.a([0-9]+)")
MANIFEST = "manifest.json"
RETIRED = "retired.json"
RETENTION = "retention"
NO_HASH = "0" * 64


class FileRecord(msgspec.Struct, frozen=True):
    size: int
    sha256: str


class Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint belongs to; the same for every save of an attempt."""

    run: str
    attempt: int
    model_type: str
    architecture: dict[str, Any] = {}
    config_sha256: str
    hashes: dict[str, str] = {}
    conditions: dict[str, Any] = {}


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """manifest.json, the mark that a checkpoint is whole. `conditions` are those under which a resume is exact."""

    format: str = FORMAT
    step: int
    stamp: Stamp
    time: str
    files: dict[str, FileRecord]
    segments: dict[str, FileRecord] = {}
    sha256: str = NO_HASH  # of the text of the manifest itself; the last field


class Retired(msgspec.Struct, frozen=True):
    """retired.json."""

    reason: str


class Versioned(msgspec.Struct, frozen=True):
    """All that is sure of a manifest of another version."""

    format: str


@dataclass(frozen=True, slots=True, order=True)
class Checkpoint:
    """One saved step of one attempt; later steps sort higher."""

    step: int
    attempt: int

    @property
    def name(self) -> str:
        return f"step-{self.step:08d}.a{self.attempt}"

    @classmethod
    def named(cls, name: str) -> "Checkpoint | None":
        """Give the checkpoint of this name; None when no checkpoint is ever called so."""
        match = NAME.fullmatch(name)
        checkpoint = cls(int(match[1]), int(match[2])) if match else None
        return checkpoint if checkpoint and checkpoint.name == name else None


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


def encode_manifest(manifest: Manifest) -> bytes:
    """Give the text of a manifest with its own hash in it."""
    bare = msgspec.json.encode(msgspec.structs.replace(manifest, sha256=NO_HASH))
    text = msgspec.json.format(bare, indent=2) + b"\n"
    before, _, after = text.rpartition(NO_HASH.encode())
    return before + sha256_of_bytes(text).encode() + after


def decode_manifest(text: bytes, key: str) -> Manifest:
    """Read the text of a manifest. Errors: DamagedCheckpointError with `key` unless each byte is as it was written."""
    try:
        version = msgspec.json.decode(text, type=Versioned).format
        if version != FORMAT:
            raise DamagedCheckpointError(f"{key}: has format {version!r}, this version reads {FORMAT!r}")
        manifest = msgspec.json.decode(text, type=Manifest)
    except (msgspec.MsgspecError, ValueError) as error:
        raise DamagedCheckpointError(f"{key}: is not a manifest: {error}") from error
    own = manifest.sha256.encode()
    before, _, after = text.rpartition(own or b"\n")
    if sha256_of_bytes(before, NO_HASH.encode(), after).encode() != own:
        raise DamagedCheckpointError(f"{key}: its SHA-256 is not the one that it states")
    return manifest


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
        checkpoint = Checkpoint(step, stamp.attempt)
        if self._store.size(f"{checkpoint.name}/{MANIFEST}") is not None:
            raise StoreError(f"{checkpoint.name}: is saved already; a checkpoint is never written over")
        encoded = codec.encode(state)
        files = {name: FileRecord(len(data), sha256_of_bytes(data)) for name, data in encoded.files.items()}
        try:
            segments = {name: self._write_segment(segment) for name, segment in encoded.segments.items()}
            for name, data in encoded.files.items():
                self._store.put(f"{checkpoint.name}/{name}", data)
        except StoreError:
            self._discard(checkpoint)
            raise
        manifest = Manifest(step=step, stamp=stamp, time=time, files=files, segments=segments)
        return Pending(checkpoint, manifest, self._store, lambda: self._discard(checkpoint))

    def _write_segment(self, segment: Segment) -> FileRecord:
        """Store a segment unless it is there, sound: one that was damaged since would spoil every later checkpoint."""
        key, name = f"segments/{segment.sha256}", segment.sha256
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
        key = f"segments/{record.sha256}"
        segment = codec.segment_of(self._sized(key, record.size), key)
        if segment.sha256 != record.sha256:
            raise DamagedCheckpointError(f"{key}: its content is not the one of its name")
        return segment

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
        for checkpoint in self.committed():
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
        if self._store.size(key) is None:
            return None
        try:
            return msgspec.json.decode(self._store.get(key), type=Retired).reason
        except (msgspec.MsgspecError, ValueError) as error:
            return f"for a reason that cannot be read ({key}: {error})"

    def _mark_retired(self, checkpoint: Checkpoint, reason: str) -> None:
        self._store.put(f"{checkpoint.name}/{RETIRED}", msgspec.json.encode(Retired(reason)))

    def _drop_tensors(self, checkpoint: Checkpoint) -> None:
        for key in self._store.keys(f"{checkpoint.name}/"):
            if key.rpartition("/")[2] not in {MANIFEST, RETIRED}:
                self._store.delete(key)

    def _drop_unused_segments(self) -> None:
        stored = self._store.keys("segments/")
        try:
            used = (
                {r.sha256 for c in self.candidates({}) for r in self.manifest(c).segments.values()} if stored else set()
            )
        except DamagedCheckpointError:
            return  # nobody knows what that manifest names; once it is retired or set aside, this is done
        for key in stored:
            name = key.removeprefix("segments/")
            if name not in used:
                self._sound.pop(name, None)
                self._store.delete(key)

    def free_bytes(self) -> int | None:
        return self._store.free_bytes()


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
