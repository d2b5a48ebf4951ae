"""`trainwright evidence`: verify, keygen and attach, as the installed command is called."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.acceptance import harness
from tests.attached import ON_CUDA, QUICK, TEXT, contract_file, sealed_run
from trainwright import runs, yamlfile
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


# -- keys ------------------------------------------------------------------------------------------------------------


def test_keygen_makes_a_key_at_home_and_prints_where_and_its_id(tmp_path: Path) -> None:
    done = harness.command(tmp_path, "evidence", "keygen")
    assert done.code == 0, done.err
    private, public, key_id = (line.split()[-1] for line in done.out.splitlines())
    assert (private, public) == (".trainwright/keys/evidence.pem", ".trainwright/keys/evidence.pub")
    assert len(key_id) == 64
    assert (tmp_path / private).stat().st_mode & 0o777 == 0o600
    again = harness.command(tmp_path, "evidence", "keygen")
    assert (again.code, again.out) == (2, "")
    assert "is there already, and a key is never overwritten" in again.err


def test_a_run_that_was_trained_beside_a_key_is_signed_and_checked_by_it(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(yamlfile.dump(harness.config(train__steps=3)))
    made = json.loads(harness.command(tmp_path, "evidence", "keygen", "--json").out)
    assert harness.command(tmp_path, "train", "run.yaml").code == 0
    run = harness.only_run(tmp_path / "runs")
    for words in (["latest"], [f"runs/{run.id}/evidence.dsse.json"], ["latest", "--key", made["public"]]):
        assert harness.command(tmp_path, "evidence", "verify", *words).out == "holds\n"
    other = json.loads(harness.command(tmp_path, "evidence", "keygen", "--out", "other.pem", "--json").out)
    done = harness.command(tmp_path, "evidence", "verify", "latest", "--key", other["public"])
    assert done.code == 3
    assert done.out.startswith("evidence.dsse.json: is signed by the key ")
    done = harness.command(tmp_path, "evidence", "verify", "latest", "--key", "none.pub")
    assert (done.code, done.out) == (2, "")


# -- attach ----------------------------------------------------------------------------------------------------------


def test_attach_prints_each_gate_before_and_after_and_the_status_shows_it(tmp_path: Path) -> None:
    run, file = sealed_run(tmp_path), contract_file(tmp_path / "contracts")
    done = harness.command(tmp_path, "evidence", "attach", run.id, "--to", "contracts/demo-v1.yaml")
    assert done.code == 0, done.err
    assert re.search(rf"{QUICK} +partial_algorithm_level → active_with_live_evidence", done.out)
    assert re.search(
        rf"{ON_CUDA} +partial_algorithm_level → partial_algorithm_level +not attached: not applic", done.out
    )
    assert done.out.splitlines()[-1] == "attached to 3 of 5 gates of contracts/demo-v1.yaml"
    assert harness.command(tmp_path, "contract", "validate", file).out == "0 errors, 0 warnings\n"
    told = harness.command(tmp_path, "contract", "status", ".")
    assert told.code == 0, told.err
    assert re.search(rf"{QUICK} .*active_with_live_evidence .*{run.id}", told.out)
    last = told.out.splitlines()[-1]
    tally = "0 proposed, 2 partial_algorithm_level, 3 active_with_live_evidence, 0 stale"
    assert last == f"5 gates: {tally}; 60 % with live evidence"
    document = json.loads(harness.command(tmp_path, "contract", "status", ".", "--json").out)
    assert list(document["tally"].values()) == [0, 2, 3, 0]
    gates = {gate["gate"]: gate for gate in document["contracts"][0]["gates"]}
    assert gates[QUICK]["evidence"]["run"] == run.id
    again = harness.command(tmp_path, "evidence", "attach", run.id, "--to", "contracts/demo-v1.yaml", "--json")
    assert again.code == 3
    attachment = json.loads(again.out)["attachment"]
    assert (attachment["entries"], attachment["refused"][QUICK]) == (
        [],
        f"run {run.id} is attached to it already; to attach it anew, take its entry out of evidence",
    )


def test_attach_of_a_named_gate_that_does_not_take_the_run_exits_3(tmp_path: Path) -> None:
    run, file = sealed_run(tmp_path), contract_file(tmp_path / "contracts")
    words = ["evidence", "attach", run.path, "--to", file, "--gate", QUICK, "--gate", ON_CUDA]
    done = harness.command(tmp_path, *words)
    assert done.code == 3
    assert "attached to 1 of 5 gates" in done.out


def test_attach_of_evidence_that_does_not_hold_prints_the_problems_and_exits_3(
    changed: RunDirectory, tmp_path: Path
) -> None:
    file = contract_file(tmp_path / "contracts")
    done = harness.command(tmp_path, "evidence", "attach", changed.id, "--to", file)
    assert (done.code, done.out.splitlines()[-1]) == (3, "1 problem")
    assert file.read_text() == TEXT
