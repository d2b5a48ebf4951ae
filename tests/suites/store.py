"""What every store of checkpoints must do: a backend's tests inherit `StoreTests` and give the fixture `store`."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainwright.checkpoints.base import Store
from trainwright.checkpoints.parts import PART_BYTES
from trainwright.checkpoints.within import within
from trainwright.errors import DamagedCheckpointError, InputError
from trainwright.files import sha256_of_bytes

HOSTILE_KEYS = [
    *("", ".", "..", "../outside", "a/../../outside", "a/..", "a/./b", "a/", "/a", "a//b", "/etc/hostname"),
    *("%2e%2e%2fhostname", "%2e%2e/outside", "%252e%252e%252foutside", "..%2foutside", "a%2fb", "a%00b"),
    *("..\\outside", "a\\..\\b", "C:\\a", "\\\\host\\share", "a\0b", "a\0/../b", "a#b", "#", "a?b", "a b", " a"),
    *("a\n", "a\nb", "\ta", "a\x1b", "~/a", "$HOME/a", "-rf", ".hidden", "a/.hidden", "file:///a", "a:b"),
    *("\u2024\u2024/outside", "\uff0e\uff0e/outside", "a\u2215b", "\u0661", "é", "a..b", "a.tmp", "a/b.1.tmp"),
]


ABSENT = "0" * 64


def verbs_of_one_key(store: Store, folder: Path) -> list[Callable[[str], object]]:
    """Give each verb as a call with the key alone; `folder` holds the file `value`."""
    value = folder / "value"
    value.write_bytes(b"two")
    sha256 = sha256_of_bytes(b"two")
    return [
        *(store.get, store.size, store.delete),
        lambda key: store.put(key, b"two"),
        lambda key: store.put_new(key, b"two"),
        lambda key: store.put_file(key, value, sha256=sha256),
        lambda key: store.get_range(key, 0, 1),
        lambda key: store.get_file(key, folder / "got", sha256=sha256),
        lambda key: store.copy(key, "b"),
        lambda key: store.copy("a", key),
    ]


def file_of(folder: Path, data: bytes) -> Path:
    path = folder / "source"
    path.write_bytes(data)
    return path


def content(store: Store) -> dict[str, bytes]:
    return {key: store.get(key) for key in list(store.keys())}


class StoreTests:
    @pytest.fixture
    def store(self) -> Store:
        raise NotImplementedError("a backend's class gives the store")

    def test_a_value_comes_back_as_it_was_put(self, store: Store) -> None:
        values = {"empty": b"", "a/b": bytes(range(256)), "a/c.d_e-f": b"\0" * 100_000, "A": b"upper"}
        for key, value in values.items():
            store.put(key, value)
        assert {key: store.get(key) for key in values} == values
        assert {key: store.size(key) for key in values} == {key: len(value) for key, value in values.items()}

    def test_a_value_in_parts_comes_back_as_one(self, store: Store) -> None:
        store.put("a", b"first, ", memoryview(b"second"), b"")
        store.put("b")
        assert (store.get("a"), store.get("b")) == (b"first, second", b"")

    def test_a_new_store_is_empty_and_can_be_swept(self, store: Store) -> None:
        store.sweep()
        assert list(store.keys()) == []

    def test_a_second_put_replaces_the_first(self, store: Store) -> None:
        store.put("a/b", b"a longer first value")
        store.put("a/b", b"second")
        assert store.get("a/b") == b"second"
        assert store.size("a/b") == 6
        assert list(store.keys()) == ["a/b"]

    def test_a_reader_sees_a_whole_value_while_another_replaces_it(self, store: Store) -> None:
        values = [bytes([number]) * size for number, size in ((1, 70_000), (2, 1), (3, 300_000))]
        store.put("a/b", values[0])
        done = threading.Event()

        def replace() -> None:
            for index in range(60):
                store.put("a/b", values[index % 3])
            done.set()

        writer = threading.Thread(target=replace)
        writer.start()
        seen = {store.get("a/b") for _ in iter(done.is_set, True)}
        writer.join()
        assert seen <= set(values)
        assert store.get("a/b") == values[59 % 3]

    def test_a_missing_key_is_told_by_its_name(self, store: Store) -> None:
        store.put("a/b", b"")
        for key in ("missing", "a/c", "a", "b/a"):
            assert store.size(key) is None
            with pytest.raises(DamagedCheckpointError, match=key):
                store.get(key)

    def test_keys_are_those_with_the_prefix_in_the_order_of_their_characters(self, store: Store) -> None:
        keys = ["b", "a/b", "a-b", "a.b", "a/b-c", "a/a", "a0", "ab/c", "B", "a/x.c/d"]
        for key in keys:
            store.put(key, b"")
        assert list(store.keys()) == sorted(keys)
        assert list(store.keys("a/")) == ["a/a", "a/b", "a/b-c", "a/x.c/d"]
        assert list(store.keys("a/b")) == ["a/b", "a/b-c"]
        assert list(store.keys("x")) == list(store.keys("../")) == []

    def test_keys_stay_the_same_while_they_are_deleted_one_by_one(self, store: Store) -> None:
        for number in range(20):
            store.put(f"a/{number}", b"")
        for key in store.keys("a/"):
            store.delete(key)
        assert list(store.keys()) == []

    def test_a_deleted_key_is_gone_and_can_be_put_again(self, store: Store) -> None:
        store.put("a/b/c", b"one")
        store.put("a/d", b"two")
        store.delete("a/b/c")
        assert store.size("a/b/c") is None
        assert list(store.keys()) == ["a/d"]
        store.put("a/b/c", b"three")
        assert store.get("a/b/c") == b"three"

    def test_deleting_what_is_not_there_is_no_error_and_removes_nothing(self, store: Store) -> None:
        store.put("a/b", b"one")
        for key in ("missing", "a", "a/b/c", "c/d"):
            store.delete(key)
        assert store.get("a/b") == b"one"

    def test_threads_that_put_and_delete_side_by_side_do_not_disturb_each_other(self, store: Store) -> None:
        def put_and_delete(writer: int) -> None:
            for _ in range(20):
                store.put(f"a/b/{writer}", b"one")
                store.delete(f"a/b/{writer}")

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(put_and_delete, range(4)))
        assert list(store.keys()) == []

    def test_sweep_keeps_every_value(self, store: Store) -> None:
        store.put("a/b", b"one")
        store.put("tmp", b"two")
        store.sweep()
        assert content(store) == {"a/b": b"one", "tmp": b"two"}

    @pytest.mark.parametrize("key", HOSTILE_KEYS)
    def test_a_key_that_could_leave_the_store_is_refused_by_every_verb(
        self, store: Store, key: str, tmp_path: Path
    ) -> None:
        store.put("a", b"one")
        folder = tmp_path / "files"
        folder.mkdir()
        for verb in verbs_of_one_key(store, folder):
            with pytest.raises(InputError, match="is not a key of a store"):
                verb(key)
        with pytest.raises(InputError, match="is not a key of a store"):
            within(store, key)
        assert content(store) == {"a": b"one"}
        assert [path.name for path in folder.iterdir()] == ["value"]

    def test_a_new_value_is_put_once(self, store: Store) -> None:
        assert store.put_new("a/b", b"")
        assert not store.put_new("a/b", b"")
        assert not store.put_new("a/b", b"second")
        assert content(store) == {"a/b": b""}
        store.delete("a/b")
        assert store.put_new("a/b", b"third")
        assert store.get("a/b") == b"third"

    def test_of_many_that_put_a_new_value_at_once_one_wins(self, store: Store) -> None:
        for number in range(2):
            start = threading.Barrier(8)

            def put(writer: int, key: str = f"a/{number}", start: threading.Barrier = start) -> bool:
                start.wait()
                return store.put_new(key, f"{writer}".encode() * 1000)

            with ThreadPoolExecutor(8) as pool:
                won = list(pool.map(put, range(8)))
            assert won.count(True) == 1
            assert store.get(f"a/{number}") == f"{won.index(True)}".encode() * 1000
        assert len(store.keys()) == 2

    def test_threads_that_put_the_same_key_at_once_leave_one_whole_value(self, store: Store) -> None:
        values = [bytes([number]) * (10_000 * number) for number in range(1, 9)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda value: store.put("a/b", value), values * 3))
        assert store.get("a/b") in values
        assert list(store.keys()) == ["a/b"]

    @pytest.mark.parametrize("size", [0, 1, PART_BYTES, 2 * PART_BYTES + 3])
    def test_a_file_comes_back_as_it_was_put(self, store: Store, size: int, tmp_path: Path) -> None:
        data = (b"0123456789abcdef!" * (size // 17 + 1))[:size]
        sha256 = sha256_of_bytes(data)
        store.put("a/b", b"earlier")
        store.put_file("a/b", file_of(tmp_path, data), sha256=sha256)
        assert store.size("a/b") == size
        store.get_file("a/b", tmp_path / "new" / "folder" / "got", sha256=sha256)
        assert (tmp_path / "new" / "folder" / "got").read_bytes() == data == store.get("a/b")
        assert list(store.keys()) == ["a/b"]

    @pytest.mark.parametrize("size", [3, PART_BYTES, 2 * PART_BYTES + 3])
    def test_a_file_of_another_hash_is_not_put(self, store: Store, size: int, tmp_path: Path) -> None:
        store.put("a/b", b"earlier")
        source = file_of(tmp_path, b"x" * size)
        for key in ("a/b", "c/d"):
            with pytest.raises(DamagedCheckpointError, match="source: its SHA-256 is"):
                store.put_file(key, source, sha256=ABSENT)
        assert content(store) == {"a/b": b"earlier"}

    def test_a_file_that_is_not_there_is_not_put(self, store: Store, tmp_path: Path) -> None:
        store.put("a/b", b"earlier")
        for key in ("a/b", "c/d"):
            with pytest.raises(DamagedCheckpointError, match="nowhere: cannot be read: No such file"):
                store.put_file(key, tmp_path / "nowhere", sha256=ABSENT)
        assert content(store) == {"a/b": b"earlier"}

    def test_a_file_got_with_another_hash_has_no_name(self, store: Store, tmp_path: Path) -> None:
        (tmp_path / "files").mkdir()
        earlier = tmp_path / "files" / "earlier"
        earlier.write_bytes(b"mine")
        store.put("a/b", b"x" * 100_000)
        for name in ("earlier", "new"):
            with pytest.raises(DamagedCheckpointError, match="a/b: its SHA-256 is"):
                store.get_file("a/b", tmp_path / "files" / name, sha256=ABSENT)
            with pytest.raises(DamagedCheckpointError, match="a/missing"):
                store.get_file("a/missing", tmp_path / "files" / name, sha256=ABSENT)
        assert [path.name for path in (tmp_path / "files").iterdir()] == ["earlier"]
        assert earlier.read_bytes() == b"mine"

    def test_a_range_is_the_bytes_from_its_start_as_many_as_there_are(self, store: Store) -> None:
        store.put("a/b", bytes(range(100)))
        store.put("empty", b"")
        ranges = {(0, 0): b"", (0, 1): b"\0", (10, 3): b"\n\x0b\x0c", (98, 9): b"bc", (100, 1): b"", (500, 5): b""}
        assert {place: store.get_range("a/b", *place) for place in ranges} == ranges
        assert store.get_range("empty", 0, 10) == b""
        for start, length in ((-1, 2), (0, -1)):
            with pytest.raises(InputError, match="expected neither to be negative"):
                store.get_range("a/b", start, length)
        with pytest.raises(DamagedCheckpointError, match="a/missing"):
            store.get_range("a/missing", 0, 1)

    @pytest.mark.parametrize("size", [0, 1000, 2 * PART_BYTES + 3])
    def test_a_copy_is_a_value_of_its_own(self, store: Store, size: int, tmp_path: Path) -> None:
        data = (b"0123456789abcdef!" * (size // 17 + 1))[:size]
        store.put_file("a/b", file_of(tmp_path, data), sha256=sha256_of_bytes(data))
        store.put("c/d", b"earlier")
        store.copy("a/b", "c/d")
        store.copy("a/b", "e/f/g")
        store.delete("a/b")
        assert content(store) == {"c/d": data, "e/f/g": data}

    def test_copying_what_is_not_there_leaves_the_target_as_it_was(self, store: Store) -> None:
        store.put("a/b", b"earlier")
        for target in ("a/b", "c/d"):
            with pytest.raises(DamagedCheckpointError, match="a/missing"):
                store.copy("a/missing", target)
        assert content(store) == {"a/b": b"earlier"}

    def test_a_copy_onto_itself_keeps_the_value(self, store: Store) -> None:
        store.put("a/b", b"one")
        store.copy("a/b", "a/b")
        assert content(store) == {"a/b": b"one"}

    def test_a_part_of_a_store_holds_what_lies_below_its_prefix_alone(self, store: Store) -> None:
        part = within(store, "runs/r1")
        for key in ("runs/r1x", "runs/r10/a", "runs/r1/a", "runs/r2/a"):
            store.put(key, key.encode())
        part.put("b", b"b")
        assert content(part) == {"a": b"runs/r1/a", "b": b"b"}
        assert list(part.keys("a")) == ["a"]
        assert list(part.keys("../")) == list(part.keys("/")) == []
        part.delete("a")
        assert list(store.keys()) == ["runs/r1/b", "runs/r10/a", "runs/r1x", "runs/r2/a"]

    def test_what_is_free_is_a_number_of_bytes_or_not_known(self, store: Store) -> None:
        free = store.free_bytes()
        assert free is None or free > 0
