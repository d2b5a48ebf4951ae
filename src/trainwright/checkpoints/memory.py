"""Checkpoints in memory, for tests and for runs that keep nothing."""

from collections.abc import Sequence

from trainwright.checkpoints.base import check_key
from trainwright.errors import DamagedCheckpointError


class MemoryStore:
    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def put(self, key: str, data: bytes) -> None:
        self._values[check_key(key)] = bytes(data)

    def get(self, key: str) -> bytes:
        if check_key(key) not in self._values:
            raise DamagedCheckpointError(f"{key}: is not in this store")
        return self._values[key]

    def size(self, key: str) -> int | None:
        return len(self._values[key]) if check_key(key) in self._values else None

    def keys(self, prefix: str = "") -> Sequence[str]:
        return sorted(key for key in self._values if key.startswith(prefix))

    def delete(self, key: str) -> None:
        self._values.pop(check_key(key), None)

    def sweep(self) -> None:
        """Nothing is ever half put."""

    def free_bytes(self) -> int | None:
        return None
