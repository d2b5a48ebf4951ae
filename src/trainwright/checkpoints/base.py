"""Where checkpoints live: a few verbs over keys, the same for every backend."""

import re
from collections.abc import Sequence
from typing import Protocol

from trainwright.errors import InputError
from trainwright.files import TEMPORARY_SUFFIX

KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")


class Store(Protocol):
    """Keys are relative, `a/b/c`. A put is atomic and durable: a reader sees the old value or the new one, whole.

    Every verb that takes a key raises InputError for one that is none (`check_key`), and StoreError when the medium
    fails. No verb follows a link that lies in the store: not a byte outside it is read, written or removed.
    """

    def put(self, key: str, data: bytes) -> None:
        """Errors: StoreError with the bytes needed and free; an earlier value then stands."""

    def get(self, key: str) -> bytes:
        """Errors: DamagedCheckpointError when the key is not there."""

    def size(self, key: str) -> int | None:
        """Give the size in bytes, or None when the key is not there."""

    def keys(self, prefix: str = "") -> Sequence[str]:
        """Give the keys that start with `prefix`, in the order of their characters."""

    def delete(self, key: str) -> None:
        """Remove the key; a missing one is no error."""

    def sweep(self) -> None:
        """Remove what interrupted puts left behind."""

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
