"""The copy of a run in a store: never half-visible, completed after any cut, and nobody else's keys touched."""

from pathlib import Path

import pytest

from tests.stores import Watched, begin, checkpoints, content, new_run, save, state_of
from trainwright.checkpoints.base import Store
from trainwright.checkpoints.checkpoints import Checkpoints
from trainwright.checkpoints.filesystem import FileStore
from trainwright.checkpoints.memory import MemoryStore
from trainwright.checkpoints.within import within
from trainwright.errors import RunTakenUpError, StoreUnavailableError
from trainwright.files import sha256_of_bytes, sha256_of_file
from trainwright.jsonfile import write_json
from trainwright.manifest import Checkpoint
from trainwright.mirror import Mirror
from trainwright.rundir import Result, RunDirectory
from trainwright.seals import write_seal

FOREIGN = {"models/toy/1.0.0/model.safetensors": b"weights", "runs/other/run.yaml": b"name: other\n"}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return new_run(tmp_path / "runs")


@pytest.fixture(params=["memory", "files"])
def whole(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Give a store in which others have keys, too."""
    store: Store = MemoryStore() if request.param == "memory" else FileStore(tmp_path / "store")
    for key, value in FOREIGN.items():
        store.put(key, value)
    return store


def view_of(store: Store, run: RunDirectory) -> Store:
    return within(store, f"runs/{run.id}")


def there(store: Store, run: RunDirectory) -> Checkpoints:
    return Checkpoints(within(store, f"runs/{run.id}/checkpoints"))


def files_of(run: RunDirectory) -> dict[str, bytes]:
    return {str(path.relative_to(run.path)): path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


def test_the_store_holds_what_the_directory_holds_and_a_second_sync_writes_nothing(
    run: RunDirectory, whole: Store
) -> None:
    for step in (10, 20):
        save(run, step)
    mirror = Mirror(run, view_of(whole, run))
    assert mirror.pending() == ["step-00000010.a1", "step-00000020.a1"]
    done = mirror.sync()
    assert [one.checkpoint for one in done.uploaded] == ["step-00000020.a1", "step-00000010.a1"], "the newest first"
    assert content(view_of(whole, run)) == files_of(run)
    assert mirror.pending() == []
    watched = Watched(view_of(whole, run))
    again = Mirror(run, watched).sync()
    assert (again.uploaded, again.retired) == ((), ())
    assert {key for key in watched.written() if key.startswith("checkpoints/")} == set()
    before = len(watched.calls)
    mirror = Mirror(run, watched)
    mirror.sync()
    mirror.sync()
    assert {key for verb, key in watched.calls[before:] if verb == "put_file"} == {"run.yaml", "environment.json"}
    assert {key: whole.get(key) for key in FOREIGN} == FOREIGN


def test_records_go_first_and_each_manifest_after_all_that_it_names(run: RunDirectory) -> None:
    for step in (10, 20):
        save(run, step)
    watched = Watched(MemoryStore())
    Mirror(run, watched).sync()
    order = watched.written()
    saved = [key for key in order if key.startswith("checkpoints/")]
    assert order == [key for key in order if key not in saved] + saved
    for name in ("step-00000020.a1", "step-00000010.a1"):
        manifest = checkpoints(run).manifest(next(c for c in checkpoints(run).committed() if c.name == name))
        named = {f"checkpoints/{name}/{file}" for file in manifest.files}
        named |= {f"checkpoints/segments/{record.sha256}" for record in manifest.segments.values()}
        assert named <= set(order[: order.index(f"checkpoints/{name}/manifest.json")])


def test_a_sync_that_is_cut_at_any_write_leaves_nothing_half_visible_and_the_next_one_completes_it(
    run: RunDirectory, whole: Store
) -> None:
    removed = save(run, 5)
    for step in (10, 20):
        save(run, step)
    first = view_of(whole, run)
    Mirror(run, first).sync()
    save(run, 30)
    checkpoints(run).retire([removed])
    before = content(first)
    for cut in range(100):
        left = MemoryStore()
        for key, value in before.items():
            left.put(key, value)
        watched = Watched(left)

        def stop_at(verb: str, key: str, watched: Watched = watched, cut: int = cut) -> None:
            if len(watched.written()) > cut:
                raise StoreUnavailableError(f"{verb} {key}: cut")

        watched.before = stop_at
        try:
            Mirror(run, watched).sync()
        except StoreUnavailableError:
            assert_whole(left)
            Mirror(run, left).sync()
            assert content(left) == files_of(run)
        else:
            break
    assert cut > 8, "a sync of so many writes was cut at each of them"


def assert_whole(store: Store) -> None:
    """Hold that every checkpoint that counts in the store loads as the state of its step."""
    saved = Checkpoints(within(store, "checkpoints"))
    candidates = saved.candidates()
    assert candidates
    for checkpoint in candidates:
        assert saved.load(checkpoint)[1]["loop"] == state_of(checkpoint.step)["loop"]


def test_what_is_retired_here_is_retired_there_with_its_tensors_and_the_segments_that_it_alone_used(
    run: RunDirectory, whole: Store
) -> None:
    removed, kept = save(run, 10), save(run, 20)
    mirror = Mirror(run, view_of(whole, run))
    mirror.sync()
    checkpoints(run).retire([removed])
    assert mirror.sync().retired == [removed.name]
    assert content(view_of(whole, run)) == files_of(run)
    assert there(whole, run).candidates() == [kept]
    assert len(whole.keys(f"runs/{run.id}/checkpoints/segments/")) == 2


def test_what_was_retired_before_it_went_up_goes_there_as_a_record_that_never_counts(run: RunDirectory) -> None:
    removed = save(run, 10)
    save(run, 20)
    checkpoints(run).retire([removed])
    watched = Watched(MemoryStore())
    Mirror(run, watched).sync()
    folder = f"checkpoints/{removed.name}"
    assert [key for key in watched.written() if key.startswith(folder)] == [
        f"{folder}/retired.json",
        f"{folder}/manifest.json",
    ]
    assert content(watched.inner) == files_of(run)


@pytest.mark.parametrize("moment", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_checkpoint_that_retention_removes_on_its_way_up_is_passed_over_and_leaves_nothing(
    run: RunDirectory, moment: str
) -> None:
    kept = save(run, 20)
    watched = Watched(MemoryStore())
    mirror = Mirror(run, watched)
    mirror.sync()
    removed = save(run, 10)

    def retire(_verb: str, key: str) -> None:
        if key == f"checkpoints/{removed.name}/{moment}":
            watched.before = lambda _verb, _key: None
            checkpoints(run).retire([removed])

    watched.before = retire
    done = mirror.sync()
    assert (done.passed_over, done.damaged) == ([removed.name], {})
    assert there_in(watched.inner) == [kept]
    assert watched.inner.keys(f"checkpoints/{removed.name}/") == []
    mirror.sync()
    assert content(watched.inner) == files_of(run)


def test_what_a_failed_upload_left_is_removed_when_its_checkpoint_was_retired_meanwhile(run: RunDirectory) -> None:
    save(run, 20)
    watched = Watched(MemoryStore())
    mirror = Mirror(run, watched)
    mirror.sync()
    removed = save(run, 10)

    def fail(_verb: str, key: str) -> None:
        if key.endswith(f"{removed.name}/state.json"):
            raise StoreUnavailableError("cut")

    watched.before = fail
    with pytest.raises(StoreUnavailableError):
        mirror.sync()
    assert watched.inner.keys(f"checkpoints/{removed.name}/")
    watched.before = lambda _verb, _key: None
    checkpoints(run).retire([removed])
    mirror.sync()
    assert content(watched.inner) == files_of(run)


def test_what_many_retired_checkpoints_cost_is_two_writes_each_and_nothing_the_next_time(run: RunDirectory) -> None:
    saved = [save(run, step) for step in range(50)]
    checkpoints(run).retire(saved[:-1])
    watched = Watched(MemoryStore())
    Mirror(run, watched).sync()
    assert len([key for key in watched.written() if "/step-" in f"/{key}"]) < 49 * 2 + 10
    before = len(watched.calls)
    Mirror(run, watched).sync()
    assert len(watched.calls) - before < 25


def there_in(store: Store) -> list[Checkpoint]:
    return Checkpoints(within(store, "checkpoints")).committed()


@pytest.mark.parametrize("name", ["model.safetensors", "segment"])
def test_what_is_damaged_here_stays_here_and_the_rest_goes_up(run: RunDirectory, name: str) -> None:
    damaged, sound = save(run, 10), save(run, 20)
    record = checkpoints(run).manifest(damaged).segments["replay.own"]
    folder = run.checkpoints / damaged.name
    path = run.checkpoints / "segments" / record.sha256 if name == "segment" else folder / name
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    store = MemoryStore()
    done = Mirror(run, store).sync()
    assert list(done.damaged) == [damaged.name]
    assert there_in(store) == [sound]
    assert store.keys(f"checkpoints/{damaged.name}/") == []


def test_what_others_left_half_there_is_removed_and_no_key_of_others_is(run: RunDirectory, whole: Store) -> None:
    save(run, 10)
    view = view_of(whole, run)
    for key in ("checkpoints/step-00000007.a1/model.safetensors", f"checkpoints/segments/{'0' * 64}"):
        view.put(key, b"left")
    Mirror(run, view).sync()
    assert content(view) == files_of(run)
    assert {key: whole.get(key) for key in FOREIGN} == FOREIGN


def end(run: RunDirectory) -> None:
    attempts = len(run.attempts())
    result = Result(outcome="done", exit_code=0, why="", step=1, best_validation=None, attempts=attempts)
    write_json(run.result, result)
    write_seal(run.path, sha256_of_file(run.result).encode(), None)


def test_a_seal_in_the_store_is_never_beside_records_that_it_was_not_made_over(run: RunDirectory) -> None:
    end(run)
    first = MemoryStore()
    Mirror(run, first).sync()
    begin(run, 0)
    end(run)
    for cut in range(100):
        left = MemoryStore()
        for key, value in content(first).items():
            left.put(key, value)
        watched = Watched(left)

        def stop_at(_verb: str, _key: str, watched: Watched = watched, cut: int = cut) -> None:
            if len(watched.written()) > cut:
                raise StoreUnavailableError("cut")

        watched.before = stop_at
        try:
            Mirror(run, watched).sync()
        except StoreUnavailableError:
            there = content(left)
            if "evidence.sha256" in there:
                assert there["evidence.json"].decode() == sha256_of_bytes(there["result.json"])
        else:
            break
    assert cut > 5
    assert content(left) == files_of(run)


def test_what_a_cut_put_of_a_record_left_is_swept_as_that_of_a_checkpoint_is(run: RunDirectory, tmp_path: Path) -> None:
    left = tmp_path / "store" / "attempts" / "1" / "steps.jsonl.7.tmp"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    Mirror(run, FileStore(tmp_path / "store")).sync()
    assert not left.exists()


def test_rows_go_up_again_whole_when_they_grew_a_torn_one_included(run: RunDirectory) -> None:
    store = MemoryStore()
    mirror = Mirror(run, store)
    mirror.sync()
    steps = run.attempts()[0].steps
    for more in (b'{"step":1}\n{"st', b'ep":2}\n'):
        with steps.open("ab") as file:
            file.write(more)
        mirror.sync()
        assert store.get("attempts/1/steps.jsonl") == steps.read_bytes()
    assert list(run.path.glob("*.tmp")) == []


@pytest.mark.parametrize("attempts_there", [1, 2])
def test_a_run_that_was_taken_up_elsewhere_gets_nothing_more_from_here(
    run: RunDirectory, tmp_path: Path, attempts_there: int
) -> None:
    other = new_run(tmp_path / "elsewhere")
    store = MemoryStore()
    if attempts_there == 1:
        other.attempts()[0].start_file.write_bytes(b'{"another": 1}')
    else:
        other.attempts()[0].start_file.write_bytes(run.attempts()[0].start_file.read_bytes())
        begin(other, 0, pid=2)
    for attempt in other.attempts():
        store.put(f"attempts/{attempt.number}/start.json", attempt.start_file.read_bytes())
    before = content(store)
    save(run, 10)
    with pytest.raises(RunTakenUpError, match=f"attempts/{attempts_there}/start.json in the store is not of"):
        Mirror(run, store).sync()
    with pytest.raises(RunTakenUpError):
        Mirror(run, store).check_claim()
    assert content(store) == before


def test_of_two_directories_that_take_a_run_up_at_once_one_has_it(run: RunDirectory, tmp_path: Path) -> None:
    """The other claims the attempt between this one's look and its put."""
    watched = Watched(MemoryStore())

    def other_claims(verb: str, key: str) -> None:
        if verb == "put_new":
            watched.inner.put(key, b'{"another": 1}')

    watched.before = other_claims
    with pytest.raises(RunTakenUpError):
        Mirror(run, watched).sync()
    assert watched.inner.keys() == ["attempts/1/start.json"]
