"""Files of rows, a line each: appended by one write a row, read by their whole lines."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainwright.errors import StoreError

BLOCK_BYTES: Final = 1 << 20  # some 6,000 rows: what is held of a long file at once; it stays in the cache


class RowWriter:
    """Appends rows to a file, each by one write: a killed process loses none that was handed over.

    Errors: StoreError naming file and reason when the disk takes no more; a row that was cut is taken back.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, line: bytes) -> None:
        try:
            written = os.write(self._descriptor, line)
            if written < len(line):
                self._write_rest(line, written)
        except OSError as error:
            raise self._failed(f"a row of {len(line)} bytes cannot be written", error) from error

    def _write_rest(self, line: bytes, written: int) -> None:
        """Write what a short write left, or take its beginning back, so that the next row starts a line."""
        try:
            while written < len(line):
                written += os.write(self._descriptor, line[written:])
        except OSError:
            os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - written)
            raise

    def sync(self) -> None:
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._failed("rows cannot be made durable", error) from error

    def _failed(self, what: str, error: OSError) -> StoreError:
        free = shutil.disk_usage(self._path.parent).free
        return StoreError(f"{self._path}: {what}: {error.strerror}; {free} bytes are free there")

    def close(self) -> None:
        os.close(self._descriptor)


def append_row(path: Path, line: bytes) -> None:
    """Append one row to a file that several threads and processes write; a row that a kill left torn is cut off.

    Errors: StoreError naming file and reason.
    """
    try:
        with path.open("ab") as held:
            fcntl.flock(held, fcntl.LOCK_EX)  # a row that another is writing is not torn
            _cut_torn(path)
            with closing(RowWriter(path)) as writer:
                writer.write(line)
                writer.sync()
    except OSError as error:
        raise StoreError(f"{path}: a row of {len(line)} bytes cannot be written: {error.strerror}") from error


def _cut_torn(path: Path) -> None:
    if (found := whole_lines(path)).torn:
        os.truncate(path, sum(len(line) + 1 for line in found.lines))


@dataclass(frozen=True, slots=True)
class WholeLines:
    """The whole lines of a file; `torn` tells that a last one without its newline was left out."""

    path: Path
    lines: list[bytes]
    torn: bool


def whole_lines(path: Path) -> WholeLines:
    """Read the lines that were written to their end; a missing file has none."""
    data = path.read_bytes() if path.exists() else b""
    *lines, rest = data.split(b"\n")
    return WholeLines(path, lines, torn=bool(rest))


def line_blocks(path: Path, size_bytes: int = BLOCK_BYTES) -> Iterator[list[bytes]]:
    """Give the lines of `whole_lines`, some `size_bytes` of them at a time."""
    if not path.exists():
        return
    with path.open("rb") as file:
        rest = b""
        while block := file.read(size_bytes):
            lines = (rest + block).split(b"\n")
            rest = lines.pop()
            if lines:
                yield lines
