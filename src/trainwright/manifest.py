"""What a saved checkpoint is called and what its JSON files say; all that is known of it without reading a tensor.

    step-00000100.a1/manifest.json, retired.json

A folder without manifest.json is an interrupted save. retired.json says why a checkpoint is no candidate any more
(retention removed its tensors, or it was found damaged); its manifest stays as the record of the save. A manifest
carries the SHA-256 of its own text (with zeros in the place of the hash), so no byte of it is unverified.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from trainwright.errors import DamagedCheckpointError
from trainwright.files import sha256_of_bytes

FORMAT = "trainwright-checkpoint/1"
NAME = re.compile(r"step-([0-9]{8,})\.a([0-9]+)")
MANIFEST = "manifest.json"
RETIRED = "retired.json"
SEGMENTS = "segments"
RETENTION = "retention"
NO_HASH = "0" * 64


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


def encode_retired(reason: str) -> bytes:
    return msgspec.json.encode(Retired(reason))


def decode_retired(text: bytes, key: str) -> str:
    """Give the reason in the text of a retired.json. The mark counts whatever it says: one that is broken says so."""
    try:
        return msgspec.json.decode(text, type=Retired).reason
    except (msgspec.MsgspecError, ValueError) as error:
        return f"for a reason that cannot be read ({key}: {error})"


def saved_in(folder: Path, of: str = "") -> list[Checkpoint]:
    """Give the checkpoints in a folder, those that have the file `of` where it is given; oldest first."""
    names = (path.name for path in folder.glob("step-*") if (path / of).exists())
    return sorted(filter(None, map(Checkpoint.named, names)))
