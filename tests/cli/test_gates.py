"""`trainwright gates --steps`: the log of another tool, judged by a contract."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from tests.attached import contract_file
from tests.contract.facts_tables import contract_data
from trainwright.checkrecords import record_checks
from trainwright.cli.main import app
from trainwright.contract.load import load_contract, shipped_contracts
from trainwright.errors import InputError


def gates(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["gates", *map(str, arguments)])


@pytest.fixture
def contract(tmp_path: Path) -> Path:
    data = contract_data()
    data["gates"].append({**data["gates"][0], "id": "GATE-TEST-002", "figures": {"worst": "max(train_loss)"}})
    path = tmp_path / "ours.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def log(folder: Path, **row: Any) -> Path:
    path = folder / "log.jsonl"
    path.write_text(json.dumps(row) + "\n")
    return path


def test_a_log_is_judged_by_its_mapped_columns_and_all_gates_hold(tmp_path: Path, contract: Path) -> None:
    steps = log(tmp_path, step=1, loss=2.5, ms=499.5)
    result = gates("--steps", steps, "--contract", contract, "--map", "train_loss=loss", "--map", "wall_ms=ms")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "2 of 2 gates could be decided from this log")
    assert "worst 499.5; headroom 0.1 %" in result.stdout


def test_what_was_not_logged_holds_no_gate(tmp_path: Path, contract: Path) -> None:
    result = gates("--steps", log(tmp_path, loss=2.5), "--contract", contract, "--map", "train_loss=loss")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (3, "1 of 2 gates could be decided from this log")
    assert "worst: column wall_ms of steps was never recorded" in " ".join(result.stdout.split())


def test_a_log_fails_a_gate_of_a_contract_from_outside_as_of_one_that_is_shipped(
    tmp_path: Path, contract: Path
) -> None:
    result = gates("--steps", log(tmp_path, wall_ms=500.5), "--contract", contract, "--json")
    verdicts = {verdict["gate"]: verdict for verdict in json.loads(result.stdout)}
    assert result.exit_code == 3
    assert verdicts["GATE-TEST-001"]["reason"] == "worst 500.5; required: worst < 500"
    assert verdicts["GATE-TEST-002"]["result"] == "no_evidence"
    shipped = gates("--steps", log(tmp_path, wall_ms=500.5), "--contract", shipped_contracts()[-1])
    assert shipped.exit_code == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected either RUN, or --steps FILE"),
        (["latest", "--steps", "log.jsonl"], "expected either RUN, or --steps FILE"),
        (["latest", "--map", "lr=rate"], "expected either RUN, or --steps FILE"),
        (["--steps", "log.jsonl"], "log.jsonl: a log names no contract; name one to judge it by, with --contract"),
        (["--steps", "none.jsonl", "--contract", "no-such"], "no-such: is no file and no shipped contract"),
    ],
)
def test_a_command_that_names_too_much_or_too_little_is_refused(arguments: list[str], message: str) -> None:
    result = gates(*arguments)
    assert isinstance(result.exception, InputError)
    assert str(result.exception).startswith(message)


@pytest.mark.parametrize(("equal_steps", "code"), [(9, 0), (8, 3)])
def test_a_record_of_checks_is_judged_again_by_its_folder_and_decides_the_exit(
    tmp_path: Path, equal_steps: int, code: int
) -> None:
    rows = [{"name": "determinism", "compared_steps": 9, "equal_steps": equal_steps}]
    contract = load_contract(contract_file(tmp_path))
    record = record_checks("pairs", tmp_path, contract, environment={"device": "cpu"}, rows=rows)
    for named in (record.run.path, record.run.path / "evidence.json"):
        assert gates(named).exit_code == code
