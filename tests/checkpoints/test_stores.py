import hashlib
import os
import resource
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pytest

from tests.suites.store import StoreTests
from trainwright.checkpoints.base import Store
from trainwright.checkpoints.filesystem import FileStore
from trainwright.checkpoints.memory import MemoryStore
from trainwright.checkpoints.open import open_store, open_url
from trainwright.checkpoints.parts import PART_BYTES
from trainwright.checkpoints.within import within
from trainwright.errors import DamagedCheckpointError, InputError, StoreError
from trainwright.files import sha256_of_bytes


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


class TestPartOfAMemoryStore(StoreTests):
    @pytest.fixture
    def store(self) -> Store:
        return within(MemoryStore(), "runs/one")


class TestPartOfAFileStore(StoreTests):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return within(FileStore(tmp_path / "store"), "runs/one")


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


@pytest.mark.parametrize("key", ["a/link", "a/folder/secret", "folder/secret"])
def test_no_verb_reads_or_writes_through_a_link(root: Path, outside: Path, tmp_path: Path, key: str) -> None:
    store = FileStore(root)
    store.put("a/b", b"ours")
    (root / "a" / "link").symlink_to(outside / "secret")
    (root / "a" / "folder").symlink_to(outside)
    (root / "folder").symlink_to(outside)
    source = tmp_path / "source"
    source.write_bytes(b"ours")
    ours = sha256_of_bytes(b"ours")
    reading: list[Callable[[], object]] = [
        lambda: store.get_range(key, 0, 6),
        lambda: store.get_file(key, tmp_path / "got", sha256=sha256_of_bytes(b"secret")),
        lambda: store.copy(key, "a/copy"),
    ]
    for verb in reading:
        with pytest.raises(DamagedCheckpointError, match="is a link, and a store follows none"):
            verb()
    with pytest.raises(StoreError, match=r"is a link, and a store follows none|cannot be written: File exists"):
        store.put_new(key, b"ours")
    writing: list[Callable[[], None]] = [
        lambda: store.put_file(key, source, sha256=ours),
        lambda: store.copy("a/b", key),
    ]
    for write in writing:
        if key == "a/link":  # what lies in the place of the file is replaced, as by `put`
            write()
            assert store.get(key) == b"ours"
            (root / key).unlink()
            (root / key).symlink_to(outside / "secret")
        else:
            with pytest.raises(StoreError, match="is a link, and a store follows none"):
                write()
    assert untouched(outside)
    assert not (tmp_path / "got").exists()
    assert sorted(store.keys()) == ["a/b"]


def test_a_file_that_does_not_fit_tells_the_bytes_needed_and_free_and_leaves_nothing(
    root: Path, tmp_path: Path
) -> None:
    store = FileStore(root)
    data = b"x" * 10_000
    source = tmp_path / "source"
    source.write_bytes(data)
    store.put("a/b", b"first")
    store.put("a/large", data)
    verbs: list[Callable[[], object]] = [
        lambda: store.put_file("a/b", source, sha256=sha256_of_bytes(data)),
        lambda: store.put_file("c/d", source, sha256=sha256_of_bytes(data)),
        lambda: store.put_new("c/e", data),
        lambda: store.copy("a/large", "a/b"),
    ]
    for verb in verbs:
        with limited(resource.RLIMIT_FSIZE, 4096), pytest.raises(StoreError) as caught:
            verb()
        assert "10000 bytes cannot be written: File too large; " in str(caught.value)
        assert " bytes are free there" in str(caught.value)
    with (
        limited(resource.RLIMIT_FSIZE, 4096),
        pytest.raises(StoreError, match="got: cannot be written: File too large"),
    ):
        store.get_file("a/large", tmp_path / "got", sha256=sha256_of_bytes(data))
    assert store.get("a/b") == b"first"
    assert names(root) == ["a", "a/b", "a/large"]
    assert not list(tmp_path.glob("got*"))


def test_a_large_file_takes_the_memory_of_a_few_parts(tmp_path: Path) -> None:
    size = 12 * PART_BYTES
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as file:
        file.truncate(size)
    sha256 = hashlib.sha256(bytes(size)).hexdigest()
    store = FileStore(tmp_path / "store")
    tracemalloc.start()
    try:
        store.put_file("a", sparse, sha256=sha256)
        store.copy("a", "b")
        store.get_file("b", tmp_path / "got", sha256=sha256)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert PART_BYTES < peak < 4 * PART_BYTES
    assert (tmp_path / "got").stat().st_size == size


PUT = """
import sys
from pathlib import Path
from trainwright.checkpoints.filesystem import FileStore
FileStore(Path(sys.argv[1])).put_file("big", Path(sys.argv[2]), sha256="")
"""


def test_a_process_killed_in_mid_put_leaves_nothing_visible_and_sweep_removes_what_it_wrote(
    root: Path, tmp_path: Path, child_environment: dict[str, str]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    child = subprocess.Popen([sys.executable, "-c", PUT, str(root), str(pipe)], env=child_environment)
    with pipe.open("wb", buffering=0) as file:
        file.write(bytes(2 * PART_BYTES + 1))  # all but this one byte is read and put into parts
        end = monotonic() + 30
        while [path.stat().st_size for path in root.glob("*.tmp")] != [2 * PART_BYTES]:
            assert monotonic() < end
        child.kill()
        child.wait()
    store = FileStore(root)
    assert list(store.keys()) == []
    assert store.size("big") is None
    store.sweep()
    assert names(root) == []
    whole = tmp_path / "whole"
    whole.write_bytes(b"whole")
    store.put_file("big", whole, sha256=sha256_of_bytes(b"whole"))
    assert store.get("big") == b"whole"


def test_sweep_below_a_prefix_leaves_the_puts_in_progress_elsewhere(root: Path) -> None:
    for name in ("runs/r1/a.7.tmp", "runs/r1/deep/b.7.tmp", "runs/r10/c.7.tmp", "d.7.tmp"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"half")
    within(FileStore(root), "runs/r1").sweep()
    assert names(root) == ["a", "d.7.tmp", "runs", "runs/r10", "runs/r10/c.7.tmp"]


def test_a_url_opens_the_store_of_its_scheme(tmp_path: Path) -> None:
    open_url(f"file://{tmp_path}/with%20space").put("a/b", b"one")
    assert (tmp_path / "with space" / "a" / "b").read_bytes() == b"one"
    memory = open_url("memory:")
    memory.put("a", b"one")
    assert list(open_url("memory:").keys()) == []


NO_STORES = [
    *("", "store", "/srv/store", "file:", "file://", "file:///", "file://host/srv", "file:///srv?x", "memory"),
    *("memory://a", "s3:", "s3://", "s3:bucket", "s3:///prefix", "s3://b?x=1", "s3://bucket/a#b", "gs://bucket"),
    *("https://host/bucket", "s3://key:secret@bucket/a"),
]


@pytest.mark.parametrize("url", NO_STORES)
def test_a_url_of_no_store_is_refused_with_those_that_are_known(url: str) -> None:
    with pytest.raises(
        InputError, match=r"no URL of a store; known are file:///folder, s3://bucket/prefix and memory:$"
    ):
        open_url(url)


def test_a_key_in_a_url_is_not_repeated() -> None:
    with pytest.raises(InputError, match="'s3://…@bucket/a' is no URL of a store"):
        open_url("s3://key:secret@bucket/a")


@pytest.mark.parametrize("prefix", ["a/../b", "..", "%2e%2e", "a//b", "a b"])
def test_a_prefix_that_is_no_key_is_refused(prefix: str) -> None:
    with pytest.raises(InputError, match="is not a key of a store"):
        open_url(f"s3://bucket/{prefix}")


def test_without_the_extra_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "trainwright.checkpoints.s3", raising=False)
    with pytest.raises(InputError, match=r"^s3:// needs the extra s3: pip install 'trainwright\[s3\]'$"):
        open_url("s3://bucket/prefix")


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
            with pytest.raises(StoreError, match=f"{root}: cannot be listed: Too many open files"):
                store.keys()
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
