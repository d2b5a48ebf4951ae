"""Where checkpoints live: a few verbs over keys, the same for every backend."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trainwright.errors import InputError
from trainwright.files import TEMPORARY_SUFFIX
from trainwright.secrets import Secret

KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")


@dataclass(frozen=True, slots=True)
class S3Settings:
    """How to reach `s3://…`; what is None is taken from `AWS_*` in the environment, as other tools do."""

    endpoint: str | None = None  # None there too: AWS's own of the region
    region: str | None = None
    access_key: str | None = None
    secret_key: Secret | None = None
    session_token: Secret | None = None
    path_style: bool = True  # endpoint/bucket/key, and not bucket.endpoint/key
    allow_http: bool = False
    retry_seconds: float = 60.0  # how long one request is tried again, with growing pauses, before it counts as failed


class Store(Protocol):
    """Keys are relative, `a/b/c`. A put is atomic and durable: a reader sees the old value or the new one, whole.

    Every verb that takes a key raises InputError for one that is none (`check_key`), and StoreError when the medium
    fails: StoreRefusedError when it answers that it will not (a wrong key, no right), StoreUnavailableError when it
    does not answer as it should, after retries. No verb follows a link that lies in the store: not a byte outside it
    is read, written or removed.
    """

    def put(self, key: str, *parts: bytes | memoryview) -> None:
        """Put `parts`, one after the other.

        Errors: StoreError with the bytes needed and free; an earlier value then stands.
        """

    def put_new(self, key: str, data: bytes) -> bool:
        """Put unless the key is there; of many at once one gives True, the others False."""

    def put_file(self, key: str, path: Path, *, sha256: str) -> None:
        """Put the bytes of a file, in parts and bounded memory.

        Errors: DamagedCheckpointError when they hash to something else than `sha256`, or the file is not there; an
        earlier value then stands.
        """

    def get(self, key: str) -> bytes:
        """Errors: DamagedCheckpointError when the key is not there."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Give `length` bytes from `start`, fewer at the value's end. Errors: as `get`."""

    def get_file(self, key: str, path: Path, *, sha256: str) -> None:
        """Write the value to a file, in parts and bounded memory; the file has its name once its hash is verified.

        Errors: DamagedCheckpointError when the key is not there or the bytes hash to something else: no file is left.
        """

    def copy(self, source: str, target: str) -> None:
        """Put the value of `source` at `target`, without the bytes passing through here where the medium can.

        Errors: DamagedCheckpointError when `source` is not there.
        """

    def size(self, key: str) -> int | None:
        """Give the size in bytes, or None when the key is not there."""

    def keys(self, prefix: str = "") -> Sequence[str]:
        """Give the keys that start with `prefix`, in the order of their characters."""

    def delete(self, key: str) -> None:
        """Remove the key; a missing one is no error."""

    def sweep(self, prefix: str = "") -> None:
        """Remove what interrupted puts of keys that start with `prefix` left behind; a put in progress fails by it."""

    def free_bytes(self) -> int | None:
        """Give what the store can still take, or None when that is not known."""


def is_key(text: str) -> bool:
    """Tell whether `text` names a place inside a store, and not one that only a put in progress uses."""
    return bool(KEY.fullmatch(text)) and ".." not in text and not text.endswith(TEMPORARY_SUFFIX)


def check_key(key: str) -> str:
    """Return `key`; InputError when it could leave the store (`..`, absolute, escapes, control characters)."""
    if not is_key(key):
        raise InputError(
            f"{key!r} is not a key of a store; expected names of letters, digits, '.', '_', '-' joined by '/', "
            f"without '..' and not ending in {TEMPORARY_SUFFIX!r}"
        )
    return key


def check_range(start: int, length: int) -> None:
    """Raise InputError for a range that begins before the value or has a negative length."""
    if start < 0 or length < 0:
        raise InputError(f"a range of {length} bytes from {start}: expected neither to be negative")
