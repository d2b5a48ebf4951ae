"""Durable writes: a file is either the old one or the new one, whole, whatever happens in between."""

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"


def write_atomically(path: Path, data: bytes | memoryview) -> None:
    """Write `data` to `path` by temporary file, fsync, rename and directory fsync.

    Errors: OSError of the failing call; the temporary file is removed, an earlier `path` is untouched.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    try:
        temporary.unlink(missing_ok=True)  # a killed process of the same number may have left it
        with temporary.open("xb", buffering=0) as file:  # never through a link that lies in its place
            view = memoryview(data).cast("B")
            while view.nbytes:
                view = view[file.write(view) :]
            os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException:
        with suppress(OSError):  # the first error is the one to tell
            temporary.unlink()
        raise
    sync_directory(path.parent)


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
    """Remove what an interrupted `write_atomically` left below `directory`; links are neither followed nor removed."""
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
