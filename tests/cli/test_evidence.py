"""`trainwright evidence verify`, as the installed command is called."""

import json
import shutil
from pathlib import Path

import pytest

from tests.acceptance import harness
from trainwright import runs
from trainwright.config import RunConfig
from trainwright.rundir import RunDirectory


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    folder = tmp_path_factory.mktemp("sealed")
    return runs.execute(RunConfig.parse(harness.config(train__steps=10)), runs_dir=folder / "runs").run


@pytest.fixture
def changed(sealed: RunDirectory, tmp_path: Path) -> RunDirectory:
    run = RunDirectory(Path(shutil.copytree(sealed.path, tmp_path / "runs" / sealed.id)))
    run.config.write_text(run.config.read_text() + "# a word more\n")
    return run


@pytest.mark.parametrize("given", ["latest", "id", "path", "file"])
def test_a_run_that_holds_is_told_in_one_word_with_exit_code_0(sealed: RunDirectory, given: str) -> None:
    named = {"latest": "latest", "id": sealed.id, "path": sealed.path, "file": sealed.evidence}[given]
    done = harness.command(sealed.path.parent.parent, "evidence", "verify", named)
    assert (done.code, done.out) == (0, "holds\n")


def test_each_problem_is_a_line_and_the_exit_code_is_3(changed: RunDirectory) -> None:
    done = harness.command(changed.path.parent.parent, "evidence", "verify", changed.id)
    first, *_, last = done.out.splitlines()
    assert done.code == 3
    assert first.startswith("run.yaml: was changed: its SHA-256 is ")
    assert last == "1 problem"


def test_with_json_the_problems_are_one_document(changed: RunDirectory) -> None:
    done = harness.command(changed.path.parent.parent, "evidence", "verify", changed.id, "--json")
    document = json.loads(done.out)
    assert (done.code, document["holds"], len(document["problems"])) == (3, False, 1)


def test_a_sealed_run_without_its_run_yaml_is_still_checked(changed: RunDirectory) -> None:
    changed.config.unlink()
    done = harness.command(changed.path.parent.parent, "evidence", "verify", changed.id)
    assert done.code == 3
    assert "run.yaml: is missing, or no record of a run" in done.out.splitlines()


def test_what_is_no_run_is_wrong_input(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    for word in ("nowhere", "other.json"):
        done = harness.command(tmp_path, "evidence", "verify", word)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith(f"error: {word}: ")
