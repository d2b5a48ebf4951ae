"""`trainwright contract validate`: what it prints and how it exits."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from tests.contract.facts_tables import contract_data
from trainwright.cli.contract import app
from trainwright.contract.load import shipped_contracts

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
