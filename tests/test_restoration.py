"""A run directory out of a store: whole or not there, verified, and never in the place of one that holds more."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.stores import Watched, begin, checkpoints, content, new_run, save
from trainwright.checkpoints.filesystem import FileStore
from trainwright.checkpoints.memory import MemoryStore
from trainwright.errors import InputError, StoreUnavailableError
from trainwright.manifest import Checkpoint
from trainwright.mirror import Mirror
from trainwright.restoration import pull_whole, restore, split_url
from trainwright.rundir import RunDirectory, all_runs


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Give a run with a retired checkpoint and two that are kept."""
    made = new_run(tmp_path / "here")
    removed = save(made, 10)
    for step in (20, 30):
        save(made, step)
    checkpoints(made).retire([removed])
    return made


@pytest.fixture
def store(run: RunDirectory) -> MemoryStore:
    made = MemoryStore()
    Mirror(run, made).sync()
    return made


def files_of(run: RunDirectory) -> dict[str, bytes]:
    return {str(path.relative_to(run.path)): path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


def test_the_directory_comes_back_byte_for_byte_under_its_id(
    run: RunDirectory, store: MemoryStore, tmp_path: Path
) -> None:
    restored = restore(store, tmp_path / "there")
    assert restored.id == run.id
    assert files_of(restored) == files_of(run)
    assert [path.name for path in (tmp_path / "there").iterdir()] == [run.id]


def test_keys_that_are_no_records_of_a_run_are_not_written(store: MemoryStore, tmp_path: Path) -> None:
    foreign = ["notes.txt", "attempts/1/other.json", "attempts/x/start.json", "checkpoints/mine/model.safetensors"]
    for key in foreign:
        store.put(key, b"x")
    restored = restore(store, tmp_path / "there")
    assert not {*foreign} & files_of(restored).keys()
    assert len(restored.attempts()) == 1


def test_what_a_restoration_that_was_cut_left_is_no_part_of_the_next(
    run: RunDirectory, store: MemoryStore, tmp_path: Path
) -> None:
    left = tmp_path / "there" / ".restoring" / run.id / "checkpoints" / "step-00000099.a1"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"left")
    assert files_of(restore(store, tmp_path / "there")) == files_of(run)


def test_a_restoration_that_is_cut_leaves_no_run_and_the_next_one_is_whole(
    run: RunDirectory, store: MemoryStore, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    for cut in range(0, 100, 3):
        watched = Watched(store)

        def stop_at(_verb: str, _key: str, watched: Watched = watched, cut: int = cut) -> None:
            if len(watched.calls) > cut:
                raise StoreUnavailableError("cut")

        watched.before = stop_at
        try:
            restored = restore(watched, there)
        except StoreUnavailableError:
            assert list(there.glob("*")) == []
        else:
            break
    assert cut > 10
    assert files_of(restored) == files_of(run)
    assert [path.name for path in there.iterdir()] == [run.id]


@pytest.mark.parametrize("file", ["model.safetensors", "manifest.json"])
def test_a_checkpoint_that_is_damaged_there_is_passed_over_by_who_goes_on(
    run: RunDirectory, store: MemoryStore, tmp_path: Path, file: str
) -> None:
    key = f"checkpoints/step-00000030.a1/{file}"
    store.put(key, store.get(key)[:-1] + b"!")
    restored = restore(store, tmp_path / "there")
    found = checkpoints(restored).newest_valid(restored.limits())
    assert found.loaded is not None
    assert found.loaded[0] == Checkpoint(20, 1)
    assert [(checkpoint.step, file in reason) for checkpoint, reason in found.rejected] == [(30, True)]


def test_a_directory_that_holds_less_is_replaced(run: RunDirectory, store: MemoryStore, tmp_path: Path) -> None:
    older = RunDirectory(Path(shutil.copytree(run.path, tmp_path / "there" / run.id)))
    shutil.rmtree(older.checkpoints / "step-00000030.a1")
    older.attempts()[0].steps.write_bytes(b"")
    assert files_of(restore(store, tmp_path / "there")) == files_of(run)
    assert [path.name for path in (tmp_path / "there").iterdir()] == [run.id]


def more_rows(run: RunDirectory) -> None:
    with run.attempts()[0].steps.open("ab") as file:
        file.write(b'{"step":1}\n')


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (more_rows, "attempts/1/steps.jsonl has more bytes"),
        (lambda run: save(run, 40), "step-00000040.a1 is not there"),
        (lambda run: begin(run, 30), "attempts/2/start.json is not there"),
        (lambda run: run.result.write_bytes(b"{}"), "result.json is not there"),
        (lambda run: run.attempts()[0].start_file.write_bytes(b"{}"), "attempts/1/start.json is another one there"),
        (lambda run: (run.path / "notes.txt").write_bytes(b"mine"), "notes.txt is not there"),
        (lambda run: save(RunDirectory(run.checkpoints / "mine"), 5), "checkpoints/mine/checkpoints/.* is not there"),
    ],
    ids=["rows", "checkpoint", "attempt", "result", "start", "notes", "copy"],
)
def test_a_directory_that_is_ahead_stays_and_is_told_with_what_it_has_more(
    run: RunDirectory, store: MemoryStore, change: Callable[[RunDirectory], object], told: str
) -> None:
    change(run)
    before = files_of(run)
    with pytest.raises(InputError, match=f"is ahead of the store: {told}; .* trainwright resume {run.id}"):
        restore(store, run.path.parent)
    assert files_of(run) == before
    assert all_runs(run.path.parent) == [run], "and what was restored is no run beside it"


def test_a_directory_whose_checkpoint_is_damaged_in_the_store_stays(run: RunDirectory, store: MemoryStore) -> None:
    store.put("checkpoints/step-00000030.a1/model.safetensors", b"damaged")
    before = files_of(run)
    with pytest.raises(InputError, match=r"step-00000030\.a1/model\.safetensors is not whole there"):
        restore(store, run.path.parent)
    assert files_of(run) == before


def test_what_was_done_after_the_training_stays_on_record_when_a_directory_is_replaced(
    run: RunDirectory, store: MemoryStore
) -> None:
    run.add_after("registered", name="toy", version="0.1.0")
    restored = restore(store, run.path.parent)
    assert [row.kind for row in restored.read_after()] == ["registered"]
    assert [path.name for path in run.path.parent.iterdir()] == [run.id]


def test_records_that_come_while_checkpoints_are_pulled_are_pulled_too(run: RunDirectory, tmp_path: Path) -> None:
    watched = Watched(MemoryStore())
    Mirror(run, watched.inner).sync()
    watched.before = lambda verb, key: (
        watched.inner.put("attempts/1/validations.jsonl", b"") if verb == "get_file" else None
    )
    assert restore(watched, tmp_path / "there").attempts()[0].validations.exists()


def test_another_run_of_that_name_stays(run: RunDirectory, store: MemoryStore) -> None:
    run.config.write_bytes(b"name: other\n")
    with pytest.raises(InputError, match="is there and is not the run of the store"):
        restore(store, run.path.parent)


def test_a_directory_that_is_being_trained_is_not_replaced(run: RunDirectory, store: MemoryStore) -> None:
    with run.locked(), pytest.raises(InputError, match="another process is training this run"):
        restore(store, run.path.parent)


@pytest.mark.parametrize(
    "text", ['{"run": "../outside"}', '{"run": "a/b"}', '{"run": ""}', '{"run": ".."}', '{"run": 7}', "{}", "[", "7"]
)
def test_an_id_that_could_leave_the_folder_or_is_none_is_refused(store: MemoryStore, tmp_path: Path, text: str) -> None:
    store.put("environment.json", text.encode())
    with pytest.raises(InputError, match=r"which is no id of a run|does not name its run"):
        restore(store, tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_a_place_without_a_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"environment\.json and run\.yaml not found"):
        restore(MemoryStore(), tmp_path)


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("s3://bucket/some/prefix/runs/toy-1", ("s3://bucket/some/prefix", "toy-1")),
        ("s3://bucket/runs/toy-1/", ("s3://bucket", "toy-1")),
        ("file:///dir/runs/x/runs/toy-1", ("file:///dir/runs/x", "toy-1")),
    ],
)
def test_the_url_of_a_run_names_its_store(url: str, parts: tuple[str, str]) -> None:
    assert split_url(url) == parts


@pytest.mark.parametrize("url", ["s3://bucket/toy-1", "s3://runs/toy-1", "s3://bucket/runs/", "s3://bucket/runs/a/b"])
def test_a_url_that_names_no_run_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="is no run in a store"):
        split_url(url)


def test_one_checkpoint_is_pulled_whole_or_not_at_all(run: RunDirectory, tmp_path: Path) -> None:
    saved, chosen = FileStore(run.checkpoints), Checkpoint(30, 1)
    folder = pull_whole(saved, chosen, tmp_path / "out")
    assert content(FileStore(tmp_path / "out")).items() <= content(saved).items()
    assert {path.name for path in folder.iterdir()} == {path.name for path in (run.checkpoints / chosen.name).iterdir()}
    with pytest.raises(InputError, match="is there already"):
        pull_whole(saved, chosen, tmp_path / "out")
