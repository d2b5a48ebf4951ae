"""What every store of checkpoints must do: a backend's tests inherit `StoreTests` and give the fixture `store`."""

import threading

import pytest

from trainwright.checkpoints.base import Store
from trainwright.errors import DamagedCheckpointError, InputError

HOSTILE_KEYS = [
    *("", ".", "..", "../outside", "a/../../outside", "a/..", "a/./b", "a/", "/a", "a//b", "/etc/hostname"),
    *("%2e%2e%2fhostname", "%2e%2e/outside", "%252e%252e%252foutside", "..%2foutside", "a%2fb", "a%00b"),
    *("..\\outside", "a\\..\\b", "C:\\a", "\\\\host\\share", "a\0b", "a\0/../b", "a#b", "#", "a?b", "a b", " a"),
    *("a\n", "a\nb", "\ta", "a\x1b", "~/a", "$HOME/a", "-rf", ".hidden", "a/.hidden", "file:///a", "a:b"),
    *("\u2024\u2024/outside", "\uff0e\uff0e/outside", "a\u2215b", "\u0661", "é", "a..b", "a.tmp", "a/b.1.tmp"),
]


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

    def test_sweep_keeps_every_value(self, store: Store) -> None:
        store.put("a/b", b"one")
        store.put("tmp", b"two")
        store.sweep()
        assert content(store) == {"a/b": b"one", "tmp": b"two"}

    @pytest.mark.parametrize("key", HOSTILE_KEYS)
    def test_a_key_that_could_leave_the_store_is_refused_by_every_verb(self, store: Store, key: str) -> None:
        store.put("a", b"one")
        for verb in (store.get, store.size, store.delete, lambda key: store.put(key, b"two")):
            with pytest.raises(InputError, match="is not a key of a store"):
                verb(key)
        assert content(store) == {"a": b"one"}

    def test_what_is_free_is_a_number_of_bytes_or_not_known(self, store: Store) -> None:
        free = store.free_bytes()
        assert free is None or free > 0
