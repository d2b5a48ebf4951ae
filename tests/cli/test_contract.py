"""`trainwright contract validate`, `contract diff` and `contract status`: what they print and how they exit."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from tests.contract.facts_tables import contract_data
from trainwright.cli.contract import app
from trainwright.contract.load import load_contract, shipped_contracts
from trainwright.errors import InputError

STATUS = "statuses are computed, never typed; take it out"
LONG = "claim of 121 characters; keep to 120, for tables"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["validate", *arguments])


def written(folder: Path, name: str = "mine.yaml", **gate: Any) -> str:
    path = folder / name
    path.write_text(yaml.safe_dump(contract_data(**gate), sort_keys=False))
    return str(path)


def test_shipped_contracts_print_no_error_and_no_warning() -> None:
    result = run("--strict", *shipped_contracts())
    assert (result.exit_code, result.stdout) == (0, "0 errors, 0 warnings\n")


def test_an_error_is_printed_with_file_line_and_gate_and_exits_2(tmp_path: Path) -> None:
    path = written(tmp_path, status="proposed", claim="x" * 121)
    result = run(path)
    assert result.exit_code == 2
    warning, error, last = result.stdout.splitlines()
    assert warning.endswith(f": GATE-TEST-001: warning: {LONG}")
    assert error == f"{path}:39: GATE-TEST-001: error: {STATUS}"
    assert last == "1 errors, 1 warnings"


@pytest.mark.parametrize(("options", "code"), [((), 0), (("--strict",), 2)])
def test_a_warning_decides_the_exit_only_under_strict(tmp_path: Path, options: tuple[str, ...], code: int) -> None:
    result = run(written(tmp_path, claim="x" * 121), *options)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (code, "0 errors, 1 warnings")


def test_json_is_one_document_of_all_files(tmp_path: Path) -> None:
    good, bad = written(tmp_path, "good.yaml"), written(tmp_path, "bad.yaml", status="proposed")
    result = run(good, bad, "none.yaml", "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 2
    assert [file["file"] for file in document["files"]] == [good, bad, "none.yaml"]
    assert (document["errors"], document["warnings"], document["files"][0]["problems"]) == (2, 0, [])
    assert document["files"][1]["problems"] == [
        {"severity": "error", "line": 39, "gate": "GATE-TEST-001", "text": STATUS}
    ]
    assert document["files"][2]["problems"][0]["gate"] is None


def test_a_file_is_told_by_the_name_that_was_given() -> None:
    result = run("no-such")
    assert result.stdout.startswith("no-such:1: error: is no file and no shipped contract; shipped: ")
    assert result.exit_code == 2


# -- diff ------------------------------------------------------------------------------------------------------------


def diff(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["diff", *arguments])


def next_version(folder: Path, version: str, **gate: Any) -> str:
    data = contract_data(**gate)
    change = {"version": version, "changes": ["next"]}
    path = folder / f"{version}.yaml"
    path.write_text(yaml.safe_dump({**data, "version": version, "changelog": [change, *data["changelog"]]}))
    return str(path)


@pytest.mark.parametrize(("version", "told", "code"), [("1.1.0", "not enough", 3), ("2.0.0", "enough", 0)])
def test_differences_are_printed_with_what_they_need_and_decide_the_exit(
    tmp_path: Path, version: str, told: str, code: int
) -> None:
    result = diff(written(tmp_path), next_version(tmp_path, version, holds="worst < 400", claim="quick"))
    assert result.exit_code == code
    assert result.stdout.splitlines() == [
        "patch: gate GATE-TEST-001: claim changed",
        "major: gate GATE-TEST-001: rule tightened: worst < 500 → worst < 400",
        f"needs: major; versions 1.0.0 → {version}: {told}",
    ]


def test_a_contract_differs_from_itself_in_nothing() -> None:
    name = shipped_contracts()[0]
    result = diff(name, name)
    assert result.exit_code == 0
    assert result.stdout.startswith("needs: none; versions ")
    assert result.stdout.endswith(": enough\n")


def test_differences_are_one_json_document(tmp_path: Path) -> None:
    result = diff(written(tmp_path), next_version(tmp_path, "1.0.1", judged="validation"), "--json")
    document = json.loads(result.stdout)
    [difference] = document.pop("differences")
    assert result.exit_code == 3
    assert document == {"needs": "minor", "old": "1.0.0", "new": "1.0.1", "enough": False}
    assert difference == {
        "needs": "minor",
        "about": "gate GATE-TEST-001",
        "text": "judged changed: run_end → validation",
        "at": ["gates", 0, "judged"],
    }


def test_a_file_is_validated_against_an_older_one(tmp_path: Path) -> None:
    result = run(next_version(tmp_path, "1.1.0", holds="worst < 400"), "--against", written(tmp_path))
    assert result.exit_code == 2
    error, last = result.stdout.splitlines()
    assert error.endswith(
        ": GATE-TEST-001: error: gate GATE-TEST-001: rule tightened: worst < 500 → worst < 400: needs a major version, "
        "and version 1.0.0 → 1.1.0 is none"
    )
    assert last == "1 errors, 0 warnings"


def test_the_status_of_every_shipped_gate_is_told_with_a_tally() -> None:
    result = CliRunner().invoke(app, ["status"])
    assert result.exit_code == 0
    gates = [gate.id for name in shipped_contracts() for gate in load_contract(name).gates]
    assert all(gate in result.stdout for gate in gates)
    assert result.stdout.splitlines()[-1].startswith(f"{len(gates)} gates: ")
    assert result.stdout.endswith(" % with live evidence\n")


def test_the_status_of_what_is_no_contract_is_wrong_input(tmp_path: Path) -> None:
    path = written(tmp_path, rows="nowhere")
    result = CliRunner().invoke(app, ["status", path])
    assert isinstance(result.exception, InputError)
    assert str(result.exception).startswith(f"{path}:")
    assert result.stdout == ""
