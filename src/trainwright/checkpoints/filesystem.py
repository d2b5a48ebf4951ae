"""Checkpoints in a folder."""

import errno
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from trainwright.checkpoints.base import check_key, is_key
from trainwright.errors import DamagedCheckpointError, StoreError
from trainwright.files import make_directory, remove_temporaries, sync_directory, write_atomically

# What a damaged store answers; any other failure (no descriptors left, no permission) says nothing about the file.
DAMAGE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EIO}

READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe in the place of a file must not block


class FileStore:
    """A store in `root`, which is made on the first put. `root` may be a link; nothing below it is taken by a link."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, key: str, data: bytes) -> None:
        path = self._path(key)
        try:
            make_directory(path.parent)
            write_atomically(path, data)
        except OSError as error:
            free = self.free_bytes()
            with suppress(OSError):
                for folder in self._folders(key):
                    _remove_if_empty(folder)
            raise StoreError(
                f"{path}: {len(data)} bytes cannot be written: {error.strerror}; {free} bytes are free there"
            ) from error

    def get(self, key: str) -> bytes:
        path = self._path(key)
        try:
            with os.fdopen(os.open(path, READ), "rb") as file:
                return file.read()
        except OSError as error:
            reason = "is a link, and a store follows none" if error.errno == errno.ELOOP else error.strerror
            kind = DamagedCheckpointError if error.errno in DAMAGE else StoreError
            raise kind(f"{path}: cannot be read: {reason}") from error

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
        return sorted(filter(is_key, _files(self._root, "", prefix)))

    def delete(self, key: str) -> None:
        if self.size(key) is None:
            return
        path = self._path(key)
        with _told(path):
            path.unlink(missing_ok=True)
            sync_directory(path.parent)
            for folder in self._folders(key):
                _remove_if_empty(folder)

    def sweep(self) -> None:
        with _told(self._root):
            remove_temporaries(self._root)
            folders = [path for path in self._root.rglob("*") if path.is_dir() and not path.is_symlink()]
            for folder in sorted(folders, reverse=True):
                _remove_if_empty(folder)

    def free_bytes(self) -> int | None:
        there = next(folder for folder in (self._root, *self._root.absolute().parents) if folder.is_dir())
        return shutil.disk_usage(there).free

    def _folders(self, key: str) -> Sequence[Path]:
        """Give the folders between the root and the file of `key`, the innermost first."""
        return (self._root / key).parents[: key.count("/")]

    def _path(self, key: str) -> Path:
        """Give the file of `key`. Errors: DamagedCheckpointError when a folder on the way to it is a link."""
        path = self._root / check_key(key)
        if link := _link_among(self._folders(key)):
            raise DamagedCheckpointError(f"{path}: {link} is a link, and a store follows none; put the folder there")
        return path


def _files(folder: Path, path: str, prefix: str) -> Iterator[str]:
    """Give the plain files below `folder` whose names, `path` and what follows, start with `prefix`; follow no link."""
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        name = path + entry.name
        if entry.is_dir(follow_symlinks=False) and f"{name}/".startswith(prefix[: len(name) + 1]):
            yield from _files(folder / entry.name, f"{name}/", prefix)
        elif entry.is_file(follow_symlinks=False) and name.startswith(prefix):
            yield name


def _link_among(folders: Sequence[Path]) -> Path | None:
    return next((folder for folder in folders if folder.is_symlink()), None)


def _remove_if_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        folder.rmdir()
        sync_directory(folder.parent)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path}: cannot be removed or tidied: {error.strerror}") from error
