"""Large files in parts: read and written with a hash on the way, in memory for a few parts whatever their size."""

import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Self

from trainwright.checkpoints.base import Store
from trainwright.errors import DamagedCheckpointError, StoreError
from trainwright.files import atomic_file, make_directory, write_all

PART_BYTES = 8 * 1024 * 1024


def parts_of(file: IO[bytes], part_bytes: int = PART_BYTES) -> Iterator[bytes]:
    while part := file.read(part_bytes):
        yield part


def parts_in(store: Store, key: str, size: int) -> Iterator[bytes]:
    """Give the first `size` bytes of a value in parts. Errors: as `Store.get_range`."""
    for start in range(0, size, PART_BYTES):
        yield store.get_range(key, start, min(PART_BYTES, size - start))


def sha256_in(store: Store, key: str, size: int) -> str:
    """Hash the first `size` bytes of a value, in memory for a part of it. Errors: as `Store.get_range`."""
    digest = hashlib.sha256()
    for part in parts_in(store, key, size):
        digest.update(part)
    return digest.hexdigest()


def verified_parts(path: Path, *, sha256: str, part_bytes: int = PART_BYTES) -> Iterator[bytes]:
    """Give the bytes of a file in parts; whoever takes them all has those that hash to `sha256`, or the error.

    Errors: DamagedCheckpointError after the last part when they do not, or when the file is not there; StoreError when
    it cannot be read.
    """
    with _told(path, "read"), path.open("rb") as file, _Hash() as digest:
        for part in parts_of(file, part_bytes):
            digest.update(part)
            yield part
        digest.check(sha256, str(path))


def write_verified(parts: Iterable[bytes | memoryview], path: Path, *, sha256: str, name: str) -> None:
    """Write a file that has its name once its bytes hash to `sha256`.

    Errors: DamagedCheckpointError with `name` when they do not; StoreError when it cannot be written; no file is left.
    """
    with _told(path, "written"):
        make_directory(path.parent)
        with atomic_file(path) as file, _Hash() as digest:
            for part in parts:
                digest.update(part)
                write_all(file, part)
            digest.check(sha256, name)


class _Hash:
    """A SHA-256 that is computed in a thread of its own, one part behind what reads or writes."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._thread = ThreadPoolExecutor(1)
        self._last: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def update(self, part: bytes | memoryview) -> None:
        self._wait()
        self._last = self._thread.submit(self._digest.update, part)

    def check(self, sha256: str, name: str) -> None:
        self._wait()
        if self._digest.hexdigest() != sha256:
            raise DamagedCheckpointError(f"{name}: its SHA-256 is {self._digest.hexdigest()}, expected {sha256}")

    def _wait(self) -> None:
        if self._last:
            self._last.result()


@contextmanager
def _told(path: Path, verb: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        missing = verb == "read" and isinstance(error, FileNotFoundError)
        kind = DamagedCheckpointError if missing else StoreError
        raise kind(f"{path}: cannot be {verb}: {error.strerror}") from error
