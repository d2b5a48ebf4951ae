"""A part of a store: what lies below one prefix, seen as a store of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainwright.checkpoints.base import Store, check_key


def within(store: Store, prefix: str) -> Store:
    """Give the part of `store` below `prefix`, a key without a slash at its end: no key of it leads out of there."""
    return _Within(store, f"{check_key(prefix)}/")


@dataclass(frozen=True, slots=True)
class _Within:
    _store: Store
    _prefix: str

    def put(self, key: str, *parts: bytes | memoryview) -> None:
        self._store.put(self._key(key), *parts)

    def put_new(self, key: str, data: bytes) -> bool:
        return self._store.put_new(self._key(key), data)

    def put_file(self, key: str, path: Path, *, sha256: str) -> None:
        self._store.put_file(self._key(key), path, sha256=sha256)

    def get(self, key: str) -> bytes:
        return self._store.get(self._key(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._store.get_range(self._key(key), start, length)

    def get_file(self, key: str, path: Path, *, sha256: str) -> None:
        self._store.get_file(self._key(key), path, sha256=sha256)

    def copy(self, source: str, target: str) -> None:
        self._store.copy(self._key(source), self._key(target))

    def size(self, key: str) -> int | None:
        return self._store.size(self._key(key))

    def keys(self, prefix: str = "") -> Sequence[str]:
        return [key.removeprefix(self._prefix) for key in self._store.keys(self._prefix + prefix)]

    def delete(self, key: str) -> None:
        self._store.delete(self._key(key))

    def sweep(self, prefix: str = "") -> None:
        self._store.sweep(self._prefix + prefix)

    def free_bytes(self) -> int | None:
        return self._store.free_bytes()

    def _key(self, key: str) -> str:
        return self._prefix + key  # which that store checks: what follows a slash must be a key itself
