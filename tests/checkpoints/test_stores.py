import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.suites.store import StoreTests
from trainwright.checkpoints.base import Store
from trainwright.checkpoints.filesystem import FileStore
from trainwright.checkpoints.memory import MemoryStore
from trainwright.checkpoints.open import open_store
from trainwright.errors import DamagedCheckpointError, StoreError


@contextmanager
def limited(kind: int, limit: int) -> Iterator[None]:
    """Hold this process to a limit of the system: writes beyond it then really fail."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


class TestMemoryStore(StoreTests):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()


class TestFileStore(StoreTests):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return open_store(tmp_path / "new" / "store")


class TestFileStoreThroughALink(StoreTests):
    """The folder of a run's checkpoints may lie on another disk."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        (tmp_path / "disk").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "disk")
        return FileStore(tmp_path / "link")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_bytes(b"secret")
    (folder / "other.1.tmp").write_bytes(b"not ours")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    (root / "a").mkdir(parents=True)
    return root


def untouched(outside: Path) -> bool:
    return {path.name: path.read_bytes() for path in outside.iterdir()} == {
        "secret": b"secret",
        "other.1.tmp": b"not ours",
    }


def test_a_link_in_the_place_of_a_file_is_never_followed(root: Path, outside: Path) -> None:
    store = FileStore(root)
    (root / "a" / "link").symlink_to(outside / "secret")
    assert store.size("a/link") is None
    assert list(store.keys()) == []
    with pytest.raises(DamagedCheckpointError, match="a/link: cannot be read: is a link"):
        store.get("a/link")
    store.delete("a/link")
    store.sweep()
    assert untouched(outside)
    store.put("a/link", b"ours")
    assert store.get("a/link") == b"ours"
    assert untouched(outside)


def test_a_link_in_the_place_of_a_folder_is_never_followed(root: Path, outside: Path) -> None:
    store = FileStore(root)
    (root / "folder").symlink_to(outside)
    (root / "a" / "folder").symlink_to(outside)
    assert list(store.keys()) == []
    for key in ("folder/secret", "a/folder/secret"):
        assert store.size(key) is None
        with pytest.raises(StoreError, match="is a link, and a store follows none"):
            store.get(key)
        with pytest.raises(StoreError, match="is a link, and a store follows none"):
            store.put(key, b"ours")
        store.delete(key)
    store.sweep()
    assert untouched(outside)


def test_a_link_in_the_place_of_a_temporary_file_is_never_written_through(root: Path, outside: Path) -> None:
    (root / "a" / f"b.{os.getpid()}.tmp").symlink_to(outside / "secret")
    store = FileStore(root)
    store.put("a/b", b"ours")
    assert store.get("a/b") == b"ours"
    assert untouched(outside)
    assert names(root) == ["a", "a/b"]


def test_a_pipe_in_the_place_of_a_file_does_not_block(root: Path) -> None:
    os.mkfifo(root / "a" / "pipe")
    store = FileStore(root)
    assert store.size("a/pipe") is None
    assert store.get("a/pipe") == b""
    assert list(store.keys()) == []


def test_files_of_foreign_names_are_no_keys_and_stay(root: Path) -> None:
    foreign = [".nfs000000001", "two words", "#draft#", "é", "a/.DS_Store"]
    for name in foreign:
        (root / name).write_bytes(b"foreign")
    store = FileStore(root)
    store.put("a/b", b"")
    assert list(store.keys()) == ["a/b"]
    store.sweep()
    assert set(foreign) < set(names(root))


def test_sweep_removes_temporary_files_and_the_folders_that_this_empties(root: Path) -> None:
    (root / "step" / "deep").mkdir(parents=True)
    for name in ("top.7.tmp", "a/b.7.tmp", "step/deep/c.123.tmp"):
        (root / name).write_bytes(b"half")
    store = FileStore(root)
    store.put("b/c", b"")
    assert list(store.keys()) == ["b/c"]
    store.sweep()
    assert names(root) == ["b", "b/c"]


def test_deleting_the_last_key_of_a_folder_removes_the_folder(root: Path) -> None:
    store = FileStore(root)
    store.put("b/c/d", b"")
    store.delete("b/c/d")
    assert names(root) == ["a"]


def test_a_put_that_does_not_fit_tells_the_bytes_needed_and_free_and_leaves_nothing(root: Path) -> None:
    store = FileStore(root)
    store.put("a/b", b"first")
    with limited(resource.RLIMIT_FSIZE, 4096), pytest.raises(StoreError) as caught:
        store.put("a/b", b"x" * 10_000)
    assert f"{root}/a/b: 10000 bytes cannot be written: File too large; " in str(caught.value)
    assert " bytes are free there" in str(caught.value)
    assert store.get("a/b") == b"first"
    assert names(root) == ["a", "a/b"]


def test_a_store_that_cannot_be_made_is_an_error_at_the_first_put(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a plain file")
    store = FileStore(tmp_path / "file" / "store")
    assert list(store.keys()) == []
    assert store.size("a") is None
    store.delete("a")
    store.sweep()
    with pytest.raises(StoreError, match=r"1 bytes cannot be written: .*; [0-9]+ bytes are free there"):
        store.put("a", b"x")
    assert names(tmp_path) == ["file"]


def test_a_process_out_of_descriptors_does_not_take_a_file_for_damaged(root: Path) -> None:
    store = FileStore(root)
    store.put("a/b", b"sound")
    taken = []
    with limited(resource.RLIMIT_NOFILE, 64):
        try:
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            with pytest.raises(StoreError, match="Too many open files") as caught:
                store.get("a/b")
        finally:
            for descriptor in taken:
                os.close(descriptor)
    assert not isinstance(caught.value, DamagedCheckpointError)
    assert store.get("a/b") == b"sound"


def test_a_name_too_long_for_the_disk_is_an_error_of_the_store(root: Path) -> None:
    store = FileStore(root)
    key = "a/" + "x" * 300
    assert store.size(key) is None
    store.delete(key)
    with pytest.raises(StoreError, match="File name too long"):
        store.put(key, b"")
