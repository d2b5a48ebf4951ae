"""The disk fills up while a run trains: exit 7 with the bytes needed and free, nothing lost, and resume goes on."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance import full_disk, harness
from trainwright import runs
from trainwright.checkpoints.checkpoints import Checkpoints
from trainwright.checkpoints.filesystem import FileStore
from trainwright.config import RunConfig
from trainwright.errors import StoreError
from trainwright.jsonfile import read_json
from trainwright.rundir import RunDirectory

LAST_SAVED = 30
NEEDED_AND_FREE = re.compile(r"([0-9]+) bytes cannot be written: (.+); ([0-9]+) bytes are free there")


def config(**changes: Any) -> dict[str, Any]:
    """Give a run whose weights take 130 KB and its optimizer twice that, saved every 10 steps; nothing is retired."""
    saving = {"checkpoint__every": 10, "checkpoint__keep_last": 10}
    return harness.config(model__hidden=512, train__steps=60, validate__every=1000, **saving, **changes)


@pytest.fixture(scope="module")
def uncut(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    runs_dir = tmp_path_factory.mktemp("uncut")
    assert harness.finish(harness.start(harness.train, config(), runs_dir)) == 0
    return harness.only_run(runs_dir)


def assert_last_checkpoint_stands(run: RunDirectory) -> None:
    checkpoints = Checkpoints(FileStore(run.checkpoints))
    found = checkpoints.newest_valid(run.limits())
    assert found.rejected == []
    assert found.loaded is not None
    assert found.loaded[0].step == LAST_SAVED
    assert {folder.name for folder in run.checkpoints.glob("step-*")} == {c.name for c in checkpoints.committed()}
    assert list(run.path.rglob("*.tmp")) == []


def test_a_checkpoint_that_does_not_fit_ends_the_run_with_7_and_resume_goes_on(
    uncut: RunDirectory, tmp_path: Path
) -> None:
    runs_dir, notes = tmp_path / "runs", tmp_path / "notes.json"
    child = harness.start(full_disk.train_with_small_files, config(), runs_dir, notes, LAST_SAVED, 60_000)
    assert harness.finish(child) == 7
    noted = read_json(notes)
    assert (noted["outcome"], noted["step"]) == ("store_failed", 40)
    told = NEEDED_AND_FREE.search(noted["why"])
    assert told, noted["why"]
    assert int(told[1]) > 60_000
    run = harness.only_run(runs_dir)
    assert read_json(run.result)["why"] == noted["why"]
    assert_last_checkpoint_stands(run)
    assert harness.finish(harness.start(harness.resume, runs_dir)) == 0
    harness.assert_equal_to(uncut, run)


@pytest.mark.parametrize("free", [0, 100_000], ids="{} bytes left".format)
def test_a_full_disk_ends_the_run_with_7_and_resume_goes_on(free: int, uncut: RunDirectory, tmp_path: Path) -> None:
    code = harness.finish(harness.start(full_disk.train_on_a_small_disk, config(), tmp_path, LAST_SAVED, free))
    if code == full_disk.NO_NAMESPACE:
        pytest.skip("this system lets no process mount a disk of its own")
    assert code == 0
    assert read_json(tmp_path / "codes.json") == {"full": 7, "resumed": 0}
    why = read_json(tmp_path / "full.json")["why"]
    assert "No space left on device" in why
    if free:
        told = NEEDED_AND_FREE.search(why)
        assert told, why
        assert int(told[1]) > int(told[3])
    assert_last_checkpoint_stands(harness.only_run(tmp_path / "full"))
    harness.assert_equal_to(uncut, harness.only_run(tmp_path / "resumed"))


def test_a_place_that_cannot_be_written_is_told_before_step_0(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a plain file")
    with pytest.raises(StoreError, match=r"cannot be written: .*; make room or choose another --runs-dir"):
        runs.execute(RunConfig.parse(config()), runs_dir=tmp_path / "file" / "runs")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
