"""A prepared folder: shards of tokens (headerless, little-endian, `train-00000.bin`) and the manifest that names them.

A folder of plain `.bin` shards without a manifest is read as it is.
"""

import math
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from trainwright.errors import DataError, InputError
from trainwright.files import sha256_of_file, sha256_of_names

Dtype: TypeAlias = Literal["uint16", "uint32"]
Split: TypeAlias = Literal["train", "validation"]
Tokens: TypeAlias = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
INCOMPLETE = "incomplete"  # the folder in a folder where `prepare` works until all is written
CHUNK_TOKENS = 1 << 22


class ShardEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    split: Split
    tokens: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a prepared folder holds, all of it counted while it was made. Sizes in bytes of UTF-8 text."""

    format_version: int = FORMAT_VERSION
    documents: int
    documents_identical: int
    documents_outside_share: int
    documents_skipped: dict[str, int]  # by reason
    documents_skipped_names: list[str]  # the first of each reason
    text_bytes: int
    tokens: dict[Split, int]
    vocabulary_size: int
    dtype: Dtype
    shards: list[ShardEntry]
    tokenizer_sha256: str
    request: dict[str, str | int | float]

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self)) + b"\n"


@dataclass(frozen=True)
class Shards:
    """The tokens of a folder, memory-mapped: a 1-d array by file name. `manifest`: None for a folder without one."""

    directory: Path
    train: Mapping[str, Tokens]
    validation: Mapping[str, Tokens]
    vocabulary_size: int
    manifest: Manifest | None = None

    @property
    def tokenizer(self) -> Path | None:
        return self.directory / TOKENIZER if self.manifest else None

    @cached_property
    def shard_hashes(self) -> dict[str, str]:
        """SHA-256 by name: from the manifest, or else of the files, read whole once."""
        if self.manifest:
            return {shard.name: shard.sha256 for shard in self.manifest.shards}
        return {name: sha256_of_file(self.directory / name) for name in (*self.train, *self.validation)}

    @property
    def data_sha256(self) -> str:
        return sha256_of_names(self.shard_hashes.items())

    @property
    def tokenizer_sha256(self) -> str | None:
        return self.manifest.tokenizer_sha256 if self.manifest else None

    def verify_hashes(self) -> None:
        """Hash every file: about 1 second a gigabyte and core, once in a process while the file is not changed.

        Errors: DataError that names the first one that differs from the manifest.
        """
        if self.manifest:
            expected = {**self.shard_hashes, TOKENIZER: self.manifest.tokenizer_sha256}
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                found = pool.map(_hash, (self.directory / name for name in expected))
                for (name, told), measured in zip(expected.items(), found, strict=True):
                    if measured != told:
                        raise DataError(
                            f"{self.directory / name}: is damaged: it has SHA-256 {measured}, its manifest says "
                            f"{told}; prepare the folder again"
                        )


def load(directory: Path, *, dtype: Dtype = "uint32", vocabulary_size: int | None = None) -> Shards:
    """Open a prepared folder; `dtype` and `vocabulary_size` are for one without a manifest.

    Without a manifest every `*.bin` is training data, but validation data where its name contains `val`; the
    vocabulary is as given, or else as large as the largest token needs. All tokens are read once to check that.
    Errors: DataError that names the file: missing, unreadable, of the wrong size, a token outside the vocabulary.
    """
    if not directory.is_dir():
        raise DataError(f"{directory}: there is no such folder; make it with: trainwright data prepare")
    if (directory / MANIFEST).exists():
        return _load_prepared(directory)
    if (directory / INCOMPLETE).exists():
        raise DataError(f"{directory}: preparing this folder was interrupted; run trainwright data prepare again")
    return _load_plain(directory, dtype, vocabulary_size)


def read_manifest(directory: Path) -> Manifest:
    """Read `manifest.json`. Errors: DataError when it is unreadable, not a manifest, or of another version."""
    path = directory / MANIFEST
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: is no manifest of version {FORMAT_VERSION}: {error}") from error
    if manifest.format_version != FORMAT_VERSION:
        raise DataError(f"{path}: has format version {manifest.format_version}, this release reads {FORMAT_VERSION}")
    return manifest


def _load_prepared(directory: Path) -> Shards:
    manifest = read_manifest(directory)
    arrays: dict[Split, dict[str, Tokens]] = {"train": {}, "validation": {}}
    for shard in manifest.shards:
        path = directory / shard.name
        tokens = _map(path, manifest.dtype)
        if len(tokens) != shard.tokens:
            raise DataError(
                f"{path}: holds {len(tokens):,} tokens, its manifest says {shard.tokens:,}; prepare the folder again"
            )
        arrays[shard.split][shard.name] = tokens
    return Shards(directory, arrays["train"], arrays["validation"], manifest.vocabulary_size, manifest)


def _load_plain(directory: Path, dtype: Dtype, vocabulary_size: int | None) -> Shards:
    arrays = {path.name: _map(path, dtype) for path in sorted(directory.glob("*.bin"))}
    if not arrays:
        raise DataError(f"{directory}: holds neither {MANIFEST} nor *.bin shards; run trainwright data prepare")
    needed = {name: largest_token(tokens) + 1 for name, tokens in arrays.items()}
    for name, size in needed.items():
        if vocabulary_size is not None and size > vocabulary_size:
            raise DataError(
                f"{directory / name}: holds token {size - 1:,} when read as {dtype}, outside the vocabulary of "
                f"{vocabulary_size:,}; give the dtype and the vocabulary size that it was written with"
            )
    train = {name: tokens for name, tokens in arrays.items() if "val" not in name}
    validation = {name: tokens for name, tokens in arrays.items() if "val" in name}
    return Shards(directory, train, validation, vocabulary_size or max(needed.values()))


def _map(path: Path, dtype: Dtype) -> Tokens:
    item = np.dtype(dtype).newbyteorder("<")
    try:
        size_bytes = path.stat().st_size
        if size_bytes == 0 or size_bytes % item.itemsize:
            raise DataError(
                f"{path}: has {size_bytes:,} bytes, expected a multiple of {item.itemsize} ({dtype} tokens)"
            )
        return np.memmap(path, item, "r")
    except OSError as error:
        raise DataError(f"{path}: the shard cannot be read: {error.strerror}") from error


def _hash(path: Path) -> str:
    try:
        status = path.stat()
        return _hash_of(path, status.st_ino, status.st_size, status.st_ctime_ns)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


@lru_cache(maxsize=1 << 16)
def _hash_of(path: Path, _inode: int, _size_bytes: int, _changed_ns: int) -> str:
    """Hash a file that was last changed then: a plan builds its model many times."""
    return sha256_of_file(path)


def largest_token(tokens: Tokens) -> int:
    return max(int(tokens[start : start + CHUNK_TOKENS].max()) for start in range(0, len(tokens), CHUNK_TOKENS))


def unigram_entropy(parts: Iterable[Tokens]) -> float:
    """Entropy in nats of the tokens of all `parts` (1-d arrays, as `Shards.validation.values()`), read in chunks.

    A model that ignores its context cannot have a lower loss on these tokens. Errors: InputError without a token.
    """
    counts = np.zeros(0, np.int64)
    for tokens in parts:
        for start in range(0, len(tokens), CHUNK_TOKENS):
            more = np.bincount(tokens[start : start + CHUNK_TOKENS], minlength=len(counts))
            more[: len(counts)] += counts
            counts = more
    total = int(counts.sum())
    if not total:
        raise InputError("there are no tokens; their entropy cannot be measured")
    shares = counts[counts > 0] / total
    return math.fsum(-shares * np.log(shares))
