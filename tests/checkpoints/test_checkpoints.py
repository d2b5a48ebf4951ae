import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainwright.checkpoints.base import Store
from trainwright.checkpoints.checkpoints import Checkpoints, Found, Pending, superseded
from trainwright.checkpoints.filesystem import FileStore
from trainwright.checkpoints.memory import MemoryStore
from trainwright.errors import StoreError
from trainwright.manifest import FORMAT, Checkpoint, Stamp, encode_manifest
from trainwright.state import Segment, StateValue

TIME = "2026-01-01T00:00:00.000Z"
NO_LIMITS: dict[int, int] = {}


def stamp(attempt: int = 1) -> Stamp:
    return Stamp(
        run="run-1",
        attempt=attempt,
        model_type="toy",
        architecture={"width": 3},
        config_sha256="c" * 64,
        hashes={"data": "d" * 64},
        conditions={"torch": "2", "threads": 1},
    )


def block(number: int) -> Segment:
    return Segment(np.arange(40, dtype=np.float32) + number)


def state(step: int) -> dict[str, StateValue]:
    """Give a state with every kind of file; `replay.shared` is the same in all of them."""
    return {
        "model.weight": torch.full((3, 2), float(step)),
        "optimizer.0.exp_avg": torch.full((3,), step / 7),
        "rng.torch": torch.arange(step % 5 + 1, dtype=torch.uint8),
        "loop": {"step": step, "best": 0.5},
        "replay.shared": block(0),
        "replay.own": block(step),
    }


def write(checkpoints: Checkpoints, step: int, attempt: int = 1) -> Pending:
    return checkpoints.write(state(step), step=step, stamp=stamp(attempt), time=TIME)


def save(checkpoints: Checkpoints, *steps: int, attempt: int = 1) -> list[Checkpoint]:
    for step in steps:
        write(checkpoints, step, attempt).commit()
    return [Checkpoint(step, attempt) for step in steps]


def is_state_of(found: dict[str, StateValue], step: int) -> bool:
    wanted = state(step)
    same = found.keys() == wanted.keys() and found["loop"] == wanted["loop"]
    for name, value in wanted.items():
        other = found[name]
        if isinstance(value, torch.Tensor):
            same = same and isinstance(other, torch.Tensor) and torch.equal(value, other)
        elif isinstance(value, Segment):
            same = same and isinstance(other, Segment) and np.array_equal(value.array, other.array)
    return same


def newest_step(checkpoints: Checkpoints, limits: dict[int, int] = NO_LIMITS) -> int | None:
    loaded = checkpoints.newest_valid(limits).loaded
    if loaded is None:
        return None
    assert is_state_of(loaded[2], loaded[0].step)
    return loaded[0].step


def segments_in(store: Store) -> set[str]:
    return {key.removeprefix("segments/") for key in store.keys("segments/")}


@pytest.fixture(params=["files", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return FileStore(tmp_path / "checkpoints") if request.param == "files" else MemoryStore()


@pytest.fixture
def checkpoints(store: Store) -> Checkpoints:
    return Checkpoints(store)


# -- saving ---------------------------------------------------------------------------------------------------------


def test_a_saved_state_comes_back_with_what_it_belongs_to(checkpoints: Checkpoints) -> None:
    (checkpoint,) = save(checkpoints, 100)
    manifest, loaded = checkpoints.load(checkpoint)
    assert is_state_of(loaded, 100)
    assert (manifest.step, manifest.stamp, manifest.time, manifest.format) == (100, stamp(), TIME, FORMAT)
    assert checkpoint.name == "step-00000100.a1"


def test_a_checkpoint_counts_from_its_manifest_on(checkpoints: Checkpoints) -> None:
    save(checkpoints, 10)
    pending = write(checkpoints, 20)
    assert checkpoints.candidates() == [Checkpoint(10, 1)]
    found = checkpoints.newest_valid(NO_LIMITS)
    assert found.loaded is not None
    assert found.loaded[0].step == 10
    assert [(c.step, reason) for c, reason in found.rejected] == [
        (20, "step-00000020.a1/manifest.json: is missing: the save was interrupted, or the file was removed")
    ]
    pending.commit()
    assert checkpoints.candidates() == [Checkpoint(20, 1), Checkpoint(10, 1)]
    assert newest_step(checkpoints) == 20


def test_an_interrupted_save_is_swept_and_nothing_else_is(store: Store, checkpoints: Checkpoints) -> None:
    save(checkpoints, 10)
    before = list(store.keys())
    write(checkpoints, 20)
    assert len(store.keys()) > len(before)
    Checkpoints(store).sweep()
    assert list(store.keys()) == before


def test_a_copy_that_a_user_made_is_neither_taken_nor_swept(store: Store, checkpoints: Checkpoints) -> None:
    save(checkpoints, 10)
    for name in ("step-00000010.a1.copy", "step-backup", "step-10.a1", "step-000000010.a1", "step-00000010.a01"):
        store.put(f"{name}/model.safetensors", b"mine")
        store.put(f"{name}/manifest.json", b"mine")
    before = list(store.keys())
    checkpoints.sweep()
    assert list(store.keys()) == before
    assert checkpoints.candidates() == [Checkpoint(10, 1)]


def test_a_checkpoint_is_never_written_over(store: Store, checkpoints: Checkpoints) -> None:
    save(checkpoints, 10)
    before = {key: store.get(key) for key in store.keys("step-")}
    with pytest.raises(StoreError, match=r"step-00000010\.a1: is saved already"):
        checkpoints.write(state(99), step=10, stamp=stamp(), time=TIME)
    assert {key: store.get(key) for key in store.keys("step-")} == before


def test_the_hash_of_the_optimizer_is_that_of_its_file(checkpoints: Checkpoints) -> None:
    one, other = write(checkpoints, 1), write(checkpoints, 2)
    assert one.optimizer_sha256 == one.manifest.files["optimizer.safetensors"].sha256 != other.optimizer_sha256
    bare = checkpoints.write({"model.w": torch.ones(1)}, step=3, stamp=stamp(), time=TIME)
    assert bare.optimizer_sha256 == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_a_state_that_cannot_be_stored_leaves_no_file(store: Store, checkpoints: Checkpoints) -> None:
    with pytest.raises(Exception, match="'loop'"):
        checkpoints.write({"model.w": torch.ones(1), "loop": float("nan")}, step=1, stamp=stamp(), time=TIME)
    assert list(store.keys()) == []


# -- damage: each file of the newest checkpoint in turn ----------------------------------------------------------------

FILES = ["manifest.json", "model.safetensors", "optimizer.safetensors", "rest.safetensors", "state.json", "segment"]
DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "truncated": lambda data: data[:-1],
    "halved": lambda data: data[: len(data) // 2],
    "flipped": lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :],
    "emptied": lambda _: b"",
    "lengthened": lambda data: data + b"\0",
    "removed": lambda _: None,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_newest_checkpoint_is_passed_over_with_file_and_reason(store: Store, file: str, damage: str) -> None:
    save(Checkpoints(store), 10, 20)
    key = f"segments/{block(20).sha256}" if file == "segment" else f"step-00000020.a1/{file}"
    changed = DAMAGES[damage](store.get(key))
    store.delete(key)
    if changed is not None:
        store.put(key, changed)
    checkpoints = Checkpoints(store)
    found = checkpoints.newest_valid(NO_LIMITS)
    ((checkpoint, reason),) = found.rejected
    assert checkpoint == Checkpoint(20, 1)
    assert key in reason
    assert found.loaded is not None
    assert found.loaded[0] == Checkpoint(10, 1)
    assert is_state_of(found.loaded[2], 10)
    checkpoints.set_aside(checkpoint, reason)
    checkpoints.sweep()
    assert not Checkpoints(store).newest_valid(NO_LIMITS).rejected
    assert newest_step(checkpoints) == 10
    save(checkpoints, 20, attempt=2)
    assert newest_step(Checkpoints(store)) == 20


def test_every_byte_of_a_checkpoint_is_verified() -> None:
    store = MemoryStore()
    save(Checkpoints(store), 20)
    for key in store.keys():  # noqa: SIM118  a store is no mapping
        sound = store.get(key)
        for index in range(0, len(sound), 7):
            store.put(key, sound[:index] + bytes([sound[index] ^ 4]) + sound[index + 1 :])
            found = Checkpoints(store).newest_valid(NO_LIMITS)
            assert found.loaded is None or is_state_of(found.loaded[2], 20)
            assert found.loaded is None or key.startswith("segments/"), f"byte {index} of {key}"
        store.put(key, sound)
    assert newest_step(Checkpoints(store)) == 20


def test_every_damaged_one_is_told_and_none_is_taken(store: Store, checkpoints: Checkpoints) -> None:
    save(checkpoints, 10, 20, 30)
    for step in (10, 20, 30):
        store.put(f"step-{step:08d}.a1/model.safetensors", b"")
    found = checkpoints.newest_valid(NO_LIMITS)
    assert found.loaded is None
    assert [checkpoint.step for checkpoint, _ in found.rejected] == [30, 20, 10]


def test_a_checkpoint_of_another_version_is_refused_by_its_format(store: Store, checkpoints: Checkpoints) -> None:
    save(checkpoints, 10, 20)
    key = "step-00000020.a1/manifest.json"
    other = b'{"format": "trainwright-checkpoint/2", "parts": [], "sha256": "0"}'
    store.put(key, other)
    ((_, reason),) = checkpoints.newest_valid(NO_LIMITS).rejected
    assert reason == f"{key}: has format 'trainwright-checkpoint/2', this version reads {FORMAT!r}"
    assert newest_step(checkpoints) == 10


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "%2e%2e", "a/b", "..", "a\\b", "a\0"])
@pytest.mark.parametrize("part", ["files", "segments"])
def test_a_manifest_that_names_what_lies_elsewhere_is_refused(store: Store, name: str, part: str) -> None:
    checkpoints = Checkpoints(store)
    save(checkpoints, 10)
    manifest = write(checkpoints, 20).manifest
    record = next(iter(manifest.files.values()))
    changes = (
        {"files": {name: record}}
        if part == "files"
        else {"segments": {"x": msgspec.structs.replace(record, sha256=name)}}
    )
    store.put("step-00000020.a1/manifest.json", encode_manifest(msgspec.structs.replace(manifest, **changes)))
    ((_, reason),) = checkpoints.newest_valid(NO_LIMITS).rejected
    assert "which is no file of a checkpoint" in reason
    assert newest_step(checkpoints) == 10


def test_a_folder_that_was_renamed_is_refused(store: Store, checkpoints: Checkpoints) -> None:
    save(checkpoints, 10)
    for key in store.keys("step-"):
        store.put(key.replace("00000010", "00000090"), store.get(key))
    ((_, reason),) = checkpoints.newest_valid(NO_LIMITS).rejected
    assert reason == "step-00000090.a1/manifest.json: is that of step 10, attempt 1; the folder was renamed"


# -- attempts fence each other -----------------------------------------------------------------------------------------


def test_what_an_attempt_saved_after_it_was_taken_over_is_not_taken(store: Store, checkpoints: Checkpoints) -> None:
    save(checkpoints, 10, 20)
    save(checkpoints, 25, attempt=2)
    save(checkpoints, 30, 40)  # attempt 1 woke up
    limits = {1: 20}
    assert newest_step(checkpoints) == 40
    assert newest_step(checkpoints, limits) == 25
    assert [c.step for c in checkpoints.candidates(limits)] == [25, 20, 10]
    assert Checkpoints(store, limits).candidates() == checkpoints.candidates(limits)


def test_an_unfinished_save_of_an_attempt_that_was_taken_over_is_no_news(checkpoints: Checkpoints) -> None:
    save(checkpoints, 10)
    write(checkpoints, 40)
    save(checkpoints, 20, attempt=2)
    assert checkpoints.newest_valid({1: 10}).rejected == []


def test_retention_by_limits_does_not_count_a_late_save_among_the_last(store: Store) -> None:
    save(Checkpoints(store), 10, 20, 90)
    fenced = Checkpoints(store, limits={1: 20})
    save(fenced, 30, attempt=2)
    fenced.retire(superseded(fenced.candidates(), best=None, keep_last=1, keep_every=None))
    assert newest_step(fenced, {1: 20}) == 30


# -- retention ---------------------------------------------------------------------------------------------------------


def test_retention_keeps_the_best_the_last_and_each_nth() -> None:
    saved = [Checkpoint(step, 1) for step in range(10, 110, 10)]
    removed = superseded(saved, best="step-00000020.a1", keep_last=2, keep_every=50)
    assert sorted(set(saved) - set(removed)) == [Checkpoint(step, 1) for step in (20, 50, 90, 100)]


saved_ones = st.sets(st.builds(Checkpoint, st.integers(0, 60), st.integers(1, 3)), max_size=15).map(list)


@given(saved_ones, st.data(), st.integers(0, 6), st.none() | st.integers(1, 20))
def test_retention_never_removes_the_best_nor_the_last(
    saved: list[Checkpoint], data: st.DataObject, keep_last: int, keep_every: int | None
) -> None:
    best = data.draw(st.sampled_from(saved)) if saved else None
    removed = superseded(saved, best=best.name if best else None, keep_last=keep_last, keep_every=keep_every)
    last = sorted(saved)[-max(keep_last, 1) :]
    assert set(removed) <= set(saved)
    assert not set(removed) & {*last, *([best] if best else [])}
    assert not any(keep_every and checkpoint.step % keep_every == 0 for checkpoint in removed)
    assert len(saved) - len(removed) >= min(len(saved), max(keep_last, 1))
    kept = [checkpoint for checkpoint in saved if checkpoint not in removed]
    assert superseded(kept, best=best.name if best else None, keep_last=keep_last, keep_every=keep_every) == []


def test_a_retired_checkpoint_keeps_its_manifest_and_loses_its_tensors(store: Store, checkpoints: Checkpoints) -> None:
    ten, _ = save(checkpoints, 10, 20)
    manifest = store.get("step-00000010.a1/manifest.json")
    checkpoints.retire([ten])
    assert list(store.keys("step-00000010")) == ["step-00000010.a1/manifest.json", "step-00000010.a1/retired.json"]
    assert store.get("step-00000010.a1/manifest.json") == manifest
    assert checkpoints.committed() == [Checkpoint(10, 1), Checkpoint(20, 1)]
    assert checkpoints.candidates() == [Checkpoint(20, 1)]
    assert (checkpoints.retired(ten), checkpoints.retired(Checkpoint(20, 1))) == ("retention", None)
    assert checkpoints.manifest(ten).step == 10
    assert newest_step(checkpoints) == 20


def test_a_retirement_that_was_cut_short_is_completed_by_sweep(store: Store, checkpoints: Checkpoints) -> None:
    save(checkpoints, 10, 20)
    whole = {key: store.get(key) for key in store.keys("step-00000010") if not key.endswith("manifest.json")}
    checkpoints.retire([Checkpoint(10, 1)])
    retired = list(store.keys())
    for key, data in whole.items():
        store.put(key, data)
    store.put(f"segments/{block(10).sha256}", b"as it was")
    assert Checkpoints(store).candidates() == [Checkpoint(20, 1)]
    assert not Checkpoints(store).newest_valid(NO_LIMITS).rejected
    Checkpoints(store).sweep()
    assert list(store.keys()) == retired


def test_a_checkpoint_set_aside_keeps_its_files(store: Store, checkpoints: Checkpoints) -> None:
    _, twenty = save(checkpoints, 10, 20)
    before = list(store.keys("step-00000020"))
    checkpoints.set_aside(twenty, "a reason")
    checkpoints.sweep()
    assert list(store.keys("step-00000020")) == sorted([*before, "step-00000020.a1/retired.json"])
    assert checkpoints.retired(twenty) == "damaged: a reason"
    assert newest_step(checkpoints) == 10


@pytest.mark.parametrize("text", [b"", b"{}", b"\xff", b'{"reason": 3}'])
def test_a_damaged_mark_of_retirement_still_retires(store: Store, checkpoints: Checkpoints, text: bytes) -> None:
    _, twenty = save(checkpoints, 10, 20)
    store.put("step-00000020.a1/retired.json", text)
    assert "cannot be read" in str(checkpoints.retired(twenty))
    checkpoints.sweep()
    assert newest_step(checkpoints) == 10


# -- segments ----------------------------------------------------------------------------------------------------------


def test_a_shared_segment_is_stored_once_and_lives_as_long_as_a_checkpoint_of_it(store: Store) -> None:
    checkpoints = Checkpoints(store)
    shared, own = block(0).sha256, {step: block(step).sha256 for step in (10, 20, 30)}
    saved = save(checkpoints, 10, 20, 30)
    assert segments_in(store) == {shared, *own.values()}
    checkpoints.retire(saved[:1])
    assert segments_in(store) == {shared, own[20], own[30]}
    assert newest_step(checkpoints) == 30
    checkpoints.retire(saved[1:])
    assert segments_in(store) == set()


def test_a_segment_that_was_dropped_is_stored_again(store: Store, checkpoints: Checkpoints) -> None:
    checkpoints.retire(save(checkpoints, 10))
    save(checkpoints, 20)
    assert newest_step(Checkpoints(store)) == 20


@pytest.mark.parametrize("damage", ["truncated", "flipped", "emptied", "removed"])
def test_a_damaged_shared_segment_does_not_spoil_the_next_checkpoint(store: Store, damage: str) -> None:
    save(Checkpoints(store), 10)
    key = f"segments/{block(0).sha256}"
    changed = DAMAGES[damage](store.get(key))
    store.delete(key)
    if changed is not None:
        store.put(key, changed)
    checkpoints = Checkpoints(store)
    save(checkpoints, 20)
    assert newest_step(checkpoints) == 20


def test_a_damaged_manifest_does_not_stop_the_tidying_nor_cost_a_segment(
    store: Store, checkpoints: Checkpoints
) -> None:
    save(checkpoints, 10, 20, 30)
    store.put("step-00000010.a1/manifest.json", b"{")
    before = segments_in(store)
    checkpoints.sweep()
    checkpoints.retire([Checkpoint(20, 1)])
    assert segments_in(store) == before
    assert newest_step(checkpoints) == 30
    checkpoints.retire([Checkpoint(10, 1)])
    assert segments_in(store) == {block(0).sha256, block(30).sha256}


# -- stores that fail --------------------------------------------------------------------------------------------------


@contextmanager
def files_at_most(size: int) -> Iterator[None]:
    """Have the system refuse longer files, in this process alone."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def files_below(folder: Path) -> Sequence[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def large_state(place: str) -> dict[str, StateValue]:
    large = torch.zeros(20_000)
    return {**state(20), place: Segment(large.numpy()) if place == "replay.own" else large}


@pytest.mark.parametrize("place", ["model.large", "optimizer.large", "rng.large", "replay.own"])
def test_a_save_that_does_not_fit_leaves_the_store_as_it_was(tmp_path: Path, place: str) -> None:
    checkpoints = Checkpoints(FileStore(tmp_path))
    save(checkpoints, 10)
    before = files_below(tmp_path)
    with files_at_most(40_000), pytest.raises(StoreError, match=r"[0-9]+ bytes cannot be written: .* bytes are free"):
        checkpoints.write(large_state(place), step=20, stamp=stamp(), time=TIME)
    assert files_below(tmp_path) == before
    found = checkpoints.newest_valid(NO_LIMITS)
    assert found.rejected == []
    assert found.loaded is not None
    assert is_state_of(found.loaded[2], 10)
    save(checkpoints, 20)
    assert newest_step(checkpoints) == 20


def test_a_manifest_that_does_not_fit_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    checkpoints = Checkpoints(FileStore(tmp_path))
    save(checkpoints, 10)
    before = files_below(tmp_path)
    pending = write(checkpoints, 20)
    with files_at_most(500), pytest.raises(StoreError, match=r"manifest\.json: [0-9]+ bytes cannot be written"):
        pending.commit()
    assert files_below(tmp_path) == before
    assert newest_step(checkpoints) == 10


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a plain file")
    checkpoints = Checkpoints(FileStore(tmp_path / "file" / "checkpoints"))
    assert checkpoints.newest_valid(NO_LIMITS) == Found(None, [])
    checkpoints.sweep()
    with pytest.raises(StoreError, match=r"file/checkpoints/.* bytes cannot be written: (Not a directory|File exists)"):
        write(checkpoints, 10)


def test_temporary_files_of_a_killed_save_are_swept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(FileStore(tmp_path))
    save(checkpoints, 10)
    before = files_below(tmp_path)
    (tmp_path / "step-00000020.a1").mkdir()
    for name in ("step-00000020.a1/model.safetensors.9.tmp", "step-00000010.a1/retired.json.9.tmp", "segments/0.9.tmp"):
        (tmp_path / name).write_bytes(b"half")
    checkpoints.sweep()
    assert files_below(tmp_path) == before
