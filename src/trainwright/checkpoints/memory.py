"""Checkpoints in memory, for tests and for runs that keep nothing."""

from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from trainwright.checkpoints.base import check_key, check_range
from trainwright.checkpoints.parts import verified_parts, write_verified
from trainwright.errors import DamagedCheckpointError


class MemoryStore:
    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._lock = Lock()

    def put(self, key: str, *parts: bytes | memoryview) -> None:
        self._values[check_key(key)] = b"".join(parts)

    def put_new(self, key: str, data: bytes) -> bool:
        check_key(key)
        with self._lock:
            if key in self._values:
                return False
            self.put(key, data)
            return True

    def put_file(self, key: str, path: Path, *, sha256: str) -> None:
        check_key(key)
        self.put(key, b"".join(verified_parts(path, sha256=sha256)))

    def get(self, key: str) -> bytes:
        if check_key(key) not in self._values:
            raise DamagedCheckpointError(f"{key}: is not in this store")
        return self._values[key]

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(start, length)
        return self.get(key)[start : start + length]

    def get_file(self, key: str, path: Path, *, sha256: str) -> None:
        write_verified([self.get(key)], path, sha256=sha256, name=key)

    def copy(self, source: str, target: str) -> None:
        check_key(target)
        self.put(target, self.get(source))

    def size(self, key: str) -> int | None:
        return len(self._values[key]) if check_key(key) in self._values else None

    def keys(self, prefix: str = "") -> Sequence[str]:
        return sorted(key for key in list(self._values) if key.startswith(prefix))

    def delete(self, key: str) -> None:
        self._values.pop(check_key(key), None)

    def sweep(self, prefix: str = "") -> None:
        """Nothing is ever half put."""

    def free_bytes(self) -> int | None:
        return None
