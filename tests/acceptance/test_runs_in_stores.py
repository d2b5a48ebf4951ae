"""A run and its copy in a store: killed in the middle of an upload, trained while the store is down, and gone on with
elsewhere.
"""

import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance import harness, uploading
from tests.stores import Watched, content
from trainwright import app, evidence, runs
from trainwright.checkpoints.base import Store
from trainwright.checkpoints.checkpoints import Checkpoints
from trainwright.checkpoints.filesystem import FileStore
from trainwright.checkpoints.memory import MemoryStore
from trainwright.checkpoints.within import within
from trainwright.config import RunConfig
from trainwright.errors import InputError, RunTakenUpError, StoreRefusedError, StoreUnavailableError
from trainwright.mirror import Mirror
from trainwright.outcome import Outcome
from trainwright.rundir import RunDirectory
from trainwright.telemetry import Telemetry

NOT_COPIED = {"after.jsonl", "report.html"}
CONTRACT = "training-loop-pretrain-v1"


def view(store: Store, run: RunDirectory) -> Store:
    return within(store, f"runs/{run.id}")


def files_of(run: RunDirectory) -> Mapping[str, bytes]:
    files = (path for path in run.path.rglob("*") if path.is_file())
    return {str(path.relative_to(run.path)): path.read_bytes() for path in files if path.name not in NOT_COPIED}


def execute(runs_dir: Path, store: Store, **changes: Any) -> runs.RunResult:
    values = harness.config(**{"train__steps": 40, **changes})
    return runs.execute(RunConfig.parse(values), runs_dir=runs_dir, store=store)


def assert_whole(store: Store, run: RunDirectory) -> None:
    """Hold that each checkpoint which counts in the store loads, every hash verified, as the one that is here."""
    saved = Checkpoints(within(store, f"runs/{run.id}/checkpoints"))
    for checkpoint in saved.candidates():
        manifest, state = saved.load(checkpoint)
        assert state["loop"]["step"] == manifest.step == checkpoint.step  # type: ignore[index,call-overload]  # a JSON value, as it was saved


@pytest.fixture(scope="module")
def uncut(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Give a run that was neither cut nor copied."""
    folder = tmp_path_factory.mktemp("uncut")
    return runs.execute(RunConfig.parse(harness.config()), runs_dir=folder).run


def test_a_run_that_ends_is_whole_in_the_store_and_its_evidence_holds_beside_what_was_done_after(
    tmp_path: Path,
) -> None:
    store = MemoryStore()
    result = execute(tmp_path, store)
    assert (result.outcome, result.left) == (Outcome.DONE, None)
    assert content(view(store, result.run)) == files_of(result.run)
    assert {row.kind for row in result.run.read_after()} == {"uploaded"}
    assert evidence.verify(result.run.path) == []
    result.run.add_after("registered", name="toy", version="0.1.0")
    assert evidence.verify(result.run.path) == []


def test_a_store_that_refuses_is_told_before_a_directory_is_made(tmp_path: Path) -> None:
    def refuse(_verb: str, _key: str) -> None:
        raise StoreRefusedError("s3://bucket: the key is wrong")

    with pytest.raises(StoreRefusedError, match="the key is wrong") as told:
        execute(tmp_path / "runs", Watched(MemoryStore(), refuse))
    assert told.value.exit_code == 7
    assert not (tmp_path / "runs").exists()


def test_a_store_that_is_down_all_the_time_is_told_once_and_the_run_ends_as_usual(tmp_path: Path) -> None:
    def down(_verb: str, _key: str) -> None:
        raise StoreUnavailableError("no answer")

    store = Watched(MemoryStore(), down)
    result = execute(tmp_path, store)
    assert (result.outcome, result.exit_code) == (Outcome.DONE, 0)
    told = [event.detail for event in result.run.read_events() if event.kind == "store_unavailable"]
    assert told == [{"reason": "no answer"}]
    assert result.left is not None
    kept = Checkpoints(FileStore(result.run.checkpoints)).candidates()
    assert result.left.checkpoints == [checkpoint.name for checkpoint in reversed(kept)]
    assert [row.kind for row in result.run.read_after()] == ["upload_failed", "uploads_pending"]
    assert evidence.verify(result.run.path) == []
    Mirror(result.run, view(store.inner, result.run)).sync()
    assert content(view(store.inner, result.run)) == files_of(result.run)


@pytest.mark.parametrize("write", [6, 15, *(pytest.param(write, marks=pytest.mark.long) for write in (1, 9, 24))])
def test_a_run_that_is_killed_in_the_middle_of_an_upload_is_completed_by_its_resume(
    tmp_path: Path, uncut: RunDirectory, write: int
) -> None:
    folder, arguments = tmp_path / "runs", (uploading.files_in, tmp_path / "store")
    values = harness.config(checkpoint__write="background" if write % 2 else "inline")
    child = harness.start(uploading.train_killed_at_write, write, values, folder, *arguments)
    assert harness.finish(child) == -signal.SIGKILL
    store, run = FileStore(tmp_path / "store"), harness.only_run(folder)
    assert_whole(store, run)
    assert harness.finish(harness.start(uploading.resume_with, folder, *arguments)) == 0
    assert content(view(store, run)) == files_of(run)
    assert list((tmp_path / "store").rglob("*.tmp")) == []
    harness.assert_equal_to(uncut, run)


def test_a_run_goes_on_bit_for_bit_from_its_url_where_its_directory_never_was(
    tmp_path: Path, uncut: RunDirectory
) -> None:
    store = tmp_path / "store"
    values = harness.config(checkpoint__store=f"file://{store}")
    child = harness.start(uploading.train_killed_once_uploaded, 40, values, tmp_path / "here", store)
    assert harness.finish(child) == -signal.SIGKILL
    run_id = harness.only_run(tmp_path / "here").id
    shutil.rmtree(tmp_path / "here")
    url = f"file://{store}/runs/{run_id}"
    completed = harness.command(tmp_path / "there", "resume", url, "--json")
    assert completed.code == 0, completed.err
    restored = harness.only_run(tmp_path / "there" / "runs")
    assert restored.id == run_id
    assert [attempt.start().step > 0 for attempt in restored.attempts()] == [False, True]
    harness.assert_equal_to(uncut, restored)
    assert evidence.verify(restored.path) == []
    assert content(within(FileStore(store), f"runs/{run_id}")) == files_of(restored)
    again = harness.command(tmp_path / "elsewhere", "resume", url)
    assert (again.code, again.out) == (2, "")
    assert f"{run_id}: has ended (done: " in again.err
    assert evidence.verify(tmp_path / "elsewhere" / "runs" / run_id) == []


def test_a_directory_whose_run_was_taken_up_elsewhere_is_not_gone_on_with(tmp_path: Path) -> None:
    store = tmp_path / "store"
    values = harness.config(checkpoint__store=f"file://{store}")
    child = harness.start(uploading.train_killed_once_uploaded, 20, values, tmp_path / "here", store)
    assert harness.finish(child) == -signal.SIGKILL
    run = harness.only_run(tmp_path / "here")
    url = f"file://{store}/runs/{run.id}"
    assert harness.command(tmp_path / "there", "resume", url).code == 0
    with harness.left_as_it_was(run.path), pytest.raises(RunTakenUpError, match="was taken up elsewhere"):
        app.resume(run.path)


def test_a_store_whose_runs_are_the_run_directories_themselves_is_refused(tmp_path: Path) -> None:
    values = harness.config(checkpoint__store=f"file://{tmp_path}")
    with pytest.raises(InputError, match=r"checkpoint\.store: .* its runs are .* itself"):
        app.train(values, runs_dir=tmp_path / "runs")
    assert list(tmp_path.iterdir()) == []


def test_what_was_uploaded_is_counted(tmp_path: Path) -> None:
    telemetry = Telemetry()
    values = harness.config(train__steps=20, checkpoint__store=f"file://{tmp_path / 'store'}")
    result = app.train(values, runs_dir=tmp_path / "runs", telemetry=telemetry)
    uploaded = [row for row in result.run.read_after() if row.kind == "uploaded"]
    assert telemetry.uploads("uploaded") == len(uploaded) > 0
    assert telemetry.uploads("failed") == 0


@pytest.mark.parametrize(("given", "copies"), [(None, 1), ("none", 0)])
def test_a_run_may_go_to_no_store_though_the_settings_name_one(
    given: str | None, copies: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINWRIGHT_STORE", f"file://{tmp_path / 'store'}")
    app.train(harness.config(train__steps=2, checkpoint__store=given), runs_dir=tmp_path / "runs")
    assert len(list(tmp_path.glob("store/runs/*"))) == copies
