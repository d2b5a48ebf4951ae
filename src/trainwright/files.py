"""Durable writes: a file is either the old one or the new one, whole, whatever happens in between."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"


@contextmanager
def atomic_file(path: Path, *, new: bool = False) -> Iterator[FileIO]:
    """Open a file that gets the name `path` once the block ends: temporary file, fsync, rename, directory fsync.

    Errors: with `new`, FileExistsError when the name is taken; OSError of the failing call. After an error, one in the
    block too, the temporary file is removed and an earlier `path` is untouched.
    """
    # Drawn, as a number of a process is taken twice where two machines, or two containers, write to one folder.
    temporary = path.with_name(f"{path.name}.{os.urandom(8).hex()}{TEMPORARY_SUFFIX}")
    try:
        with temporary.open("xb", buffering=0) as file:  # never through a link that lies in its place
            yield file
            os.fsync(file.fileno())
        _take_name(temporary, path, new=new)
    except BaseException:
        with suppress(OSError):  # the first error is the one to tell
            temporary.unlink()
        raise
    sync_directory(path.parent)


def _take_name(temporary: Path, path: Path, *, new: bool) -> None:
    if not new:
        temporary.rename(path)
        return
    path.hardlink_to(temporary)  # which of many wins is the file system's to say
    temporary.unlink()


def write_all(file: FileIO, *parts: bytes | memoryview) -> None:
    for part in parts:
        view = memoryview(part).cast("B")
        while view.nbytes:
            view = view[file.write(view) :]


def write_atomically(path: Path, *parts: bytes | memoryview) -> None:
    """Write `parts`, one after the other, to `path` as `atomic_file` does. Errors: OSError of the failing call."""
    with atomic_file(path) as file:
        write_all(file, *parts)


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable (rename and unlink are only so after this)."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(directory: Path) -> None:
    """Create `directory` and its parents, each of them durably."""
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


def remove_temporaries(directory: Path) -> None:
    """Remove what an interrupted `atomic_file` left below `directory`; links are neither followed nor removed."""
    for path in directory.rglob(f"*{TEMPORARY_SUFFIX}"):
        if path.is_file() and not path.is_symlink():
            path.unlink(missing_ok=True)


def sha256_of_bytes(*parts: bytes | memoryview) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def sha256_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_names(hashes: Iterable[tuple[str, str]]) -> str:
    """One hash over (name, hash) pairs, independent of their order."""
    return sha256_of_bytes("".join(f"{name}\0{value}\n" for name, value in sorted(hashes)).encode())
