"""Checkpoints in a folder."""

import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import IO, Final

from trainwright.checkpoints.base import check_key, check_range, is_key
from trainwright.checkpoints.parts import parts_of, verified_parts, write_verified
from trainwright.errors import DamagedCheckpointError, StoreError
from trainwright.files import TEMPORARY_SUFFIX, atomic_file, make_directory, sync_directory, write_all

# What a damaged store answers; any other failure (no descriptors left, no permission) says nothing about the file.
DAMAGE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EIO}

HELD = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT}  # a folder that is in use, or that another removed at once

TRIES: Final = 100  # of making a folder that another removes each time before the file is in it

READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe in the place of a file must not block


class FileStore:
    """A store in `root`, which is made on the first put. `root` may be a link; nothing below it is taken by a link."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, key: str, *parts: bytes | memoryview) -> None:
        with self._written(key, sum(map(len, parts))) as path, _new_file(path) as file:
            write_all(file, *parts)

    def put_new(self, key: str, data: bytes) -> bool:
        if self.size(key) is not None:
            return False
        with self._written(key, len(data)) as path:
            try:
                with _new_file(path, new=True) as file:
                    write_all(file, data)
            except FileExistsError:
                if self.size(key) is None:
                    raise
                return False
        return True

    def put_file(self, key: str, path: Path, *, sha256: str) -> None:
        with self._written(key, _size_of(path)) as target:
            self._write(target, verified_parts(path, sha256=sha256))

    def get(self, key: str) -> bytes:
        with self._opened(key) as file:
            return file.read()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(start, length)
        with self._opened(key) as file:
            file.seek(start)
            return file.read(length)

    def get_file(self, key: str, path: Path, *, sha256: str) -> None:
        write_verified(self._parts(key), path, sha256=sha256, name=str(self._path(key)))

    def copy(self, source: str, target: str) -> None:
        parts = self._parts(check_key(source))
        with self._written(target, self.size(source)) as path:
            self._write(path, parts)

    def size(self, key: str) -> int | None:
        path = self._root / check_key(key)
        if _link_among(self._folders(key)):
            return None
        try:
            status = path.lstat()
        except OSError:
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def keys(self, prefix: str = "") -> Sequence[str]:
        with _told(self._root, "listed"):
            entries = _entries(self._root, "", prefix)
            return sorted(name for name, entry in entries if is_key(name) and entry.is_file(follow_symlinks=False))

    def delete(self, key: str) -> None:
        if self.size(key) is None:
            return
        path = self._path(key)
        with _told(path):
            path.unlink(missing_ok=True)
            with suppress(FileNotFoundError):  # another has removed the folder, durably
                sync_directory(path.parent)
            for folder in self._folders(key):
                _remove_if_empty(folder)

    def sweep(self, prefix: str = "") -> None:
        with _told(self._root):
            for name, entry in _entries(self._root, "", prefix):
                if entry.is_dir(follow_symlinks=False):
                    _remove_if_empty(Path(entry.path))
                elif name.endswith(TEMPORARY_SUFFIX):
                    Path(entry.path).unlink(missing_ok=True)

    def free_bytes(self) -> int | None:
        there = next(folder for folder in (self._root, *self._root.absolute().parents) if folder.is_dir())
        return shutil.disk_usage(there).free

    @contextmanager
    def _written(self, key: str, size: int | None) -> Iterator[Path]:
        """Give the file of `key`; an error in the block removes again the folders that are empty."""
        path = self._path(key)
        try:
            yield path
        except BaseException as error:
            free = self.free_bytes()
            with suppress(OSError):
                for folder in self._folders(key):
                    _remove_if_empty(folder)
            if not isinstance(error, OSError):
                raise
            raise StoreError(
                f"{path}: {size} bytes cannot be written: {error.strerror}; {free} bytes are free there"
            ) from error

    def _write(self, path: Path, parts: Iterable[bytes]) -> None:
        with _new_file(path) as file:
            for part in parts:
                write_all(file, part)

    @contextmanager
    def _opened(self, key: str) -> Iterator[IO[bytes]]:
        path = self._path(key)
        try:
            with os.fdopen(os.open(path, READ), "rb") as file:
                yield file
        except OSError as error:
            reason = "is a link, and a store follows none" if error.errno == errno.ELOOP else error.strerror
            kind = DamagedCheckpointError if error.errno in DAMAGE else StoreError
            raise kind(f"{path}: cannot be read: {reason}") from error

    def _parts(self, key: str) -> Iterator[bytes]:
        with self._opened(key) as file:
            yield from parts_of(file)

    def _folders(self, key: str) -> Sequence[Path]:
        """Give the folders between the root and the file of `key`, the innermost first."""
        return (self._root / key).parents[: key.count("/")]

    def _path(self, key: str) -> Path:
        """Give the file of `key`. Errors: DamagedCheckpointError when a folder on the way to it is a link."""
        path = self._root / check_key(key)
        if link := _link_among(self._folders(key)):
            raise DamagedCheckpointError(f"{path}: {link} is a link, and a store follows none; put the folder there")
        return path


@contextmanager
def _new_file(path: Path, *, new: bool = False) -> Iterator[FileIO]:
    """Open as `atomic_file` does, the folder made: anew, when another's delete removes it while it is still empty."""
    with ExitStack() as opened:
        for left in reversed(range(TRIES)):
            try:
                make_directory(path.parent)
                file = opened.enter_context(atomic_file(path, new=new))
                break
            except FileNotFoundError:
                if not left:
                    raise
        yield file


def _entries(folder: Path, path: str, prefix: str) -> Iterator[tuple[str, "os.DirEntry[str]"]]:
    """Give what lies below `folder` and may be of names, `path` and what follows, that start with `prefix`.

    A folder comes after what is in it. No link is given or followed.
    """
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        name = path + entry.name
        if entry.is_dir(follow_symlinks=False) and f"{name}/".startswith(prefix[: len(name) + 1]):
            yield from _entries(folder / entry.name, f"{name}/", prefix)
            yield name, entry
        elif entry.is_file(follow_symlinks=False) and name.startswith(prefix):
            yield name, entry


def _size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None  # the read will tell why


def _link_among(folders: Sequence[Path]) -> Path | None:
    return next((folder for folder in folders if folder.is_symlink()), None)


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
        sync_directory(folder.parent)
    except OSError as error:
        if error.errno not in HELD:
            raise


@contextmanager
def _told(path: Path, done: str = "removed or tidied") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path}: cannot be {done}: {error.strerror}") from error
