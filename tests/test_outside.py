"""Contracts from outside are worked on in a child, with the same result as one that is shipped has here."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.attached import FINITE, QUICK, WHOLE, contract_file, sealed_run
from tests.contract.facts_tables import contract_data
from trainwright import outside
from trainwright.attachments import Attachment
from trainwright.contract.diff import compare_files
from trainwright.contract.load import file_of, read_contract, shipped_contracts
from trainwright.contract.run import judge_run
from trainwright.contract.validate import validate
from trainwright.evidence import verify
from trainwright.rundir import RunDirectory
from trainwright.statuses import statuses_of

OF_CHECKS: dict[str, Any] = {"rows": "checks", "kind": "probe", "figures": {"worst": "max(drift)"}}
CHECKED: Any = {"fixtures": {"good": [{"checks": {"drift": 1.0}}], "bad": [{"checks": {"drift": 500.0}}]}}


def written(path: Path, **gate: Any) -> Path:
    path.write_text(yaml.safe_dump(contract_data(**gate), sort_keys=False))
    return path


@pytest.fixture
def checked(tmp_path: Path) -> RunDirectory:
    """Give a record of checks, under a contract of its own."""
    run = RunDirectory(tmp_path)
    run.environment.write_text(json.dumps({"device": "cpu"}))
    run.checks.write_text(json.dumps({"drift": 501.0}) + "\n")
    written(run.contract, **OF_CHECKS, **CHECKED)
    return run


def test_a_contract_from_outside_has_the_same_problems_in_a_child(tmp_path: Path) -> None:
    path = written(tmp_path / "their.yaml", claim="x" * 121, status="proposed")
    found = outside.problems_of(str(path))
    assert len(found) == 2
    assert found == validate(path)


def test_a_run_is_judged_in_a_child_as_it_is_here(checked: RunDirectory, tmp_path: Path) -> None:
    other = written(tmp_path / "other.yaml", **OF_CHECKS, **CHECKED, holds="worst < 502")
    for contract, result in ((None, "fail"), (str(other), "pass")):
        verdicts = outside.verdicts_of_run(checked, contract)
        assert [verdict.result for verdict in verdicts] == [result]
        assert verdicts == judge_run(checked, contract)


def test_contracts_are_compared_in_a_child_as_they_are_here(tmp_path: Path) -> None:
    old, new = written(tmp_path / "old.yaml"), written(tmp_path / "new.yaml", holds="worst < 400")
    found = outside.comparison_of(str(old), str(new))
    assert (found, found.needs) == (compare_files(old, new), "major")


def test_a_run_is_attached_in_a_child_between_two_looks_at_the_statuses(tmp_path: Path) -> None:
    run, file = sealed_run(tmp_path), contract_file(tmp_path / "contracts")
    first = statuses_of(file)
    before, done, after = outside.attached(run, file, [WHOLE, FINITE])
    assert (before, after, outside.statuses_in(file)) == (first, statuses_of(file), statuses_of(file))
    assert isinstance(done, Attachment)
    assert [entry.gate for entry in done.entries] == [WHOLE, FINITE]
    assert [one.status for one in after if one.gate in {WHOLE, QUICK}] == [
        *("active_with_live_evidence", "partial_algorithm_level"),
    ]
    assert outside.problems_of_evidence(run) == []
    run.config.write_text(run.config.read_text() + "# a word more\n")
    assert outside.problems_of_evidence(run) == verify(run.path) != []


def test_only_a_contract_that_is_not_shipped_needs_a_child(
    checked: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/interpreter")
    shipped, own = shipped_contracts()[0], str(checked.contract)
    works: list[Callable[[], object]] = [
        lambda: outside.problems_of(own),
        lambda: outside.verdicts_of_log("log.jsonl", own, []),
        lambda: outside.verdicts_of_run(checked, own),
        lambda: outside.verdicts_of_run(checked, None),
        lambda: outside.problems_of_evidence(checked),
        lambda: outside.problems_of(shipped, own),
        lambda: outside.comparison_of(shipped, own),
        lambda: outside.statuses_in(checked.contract),
        lambda: outside.attached(checked, file_of(shipped)),
    ]
    for work in works:
        with pytest.raises(FileNotFoundError, match="/no/such/interpreter"):
            work()
    checked.contract.write_text(read_contract(shipped)[0])  # as a run keeps it
    assert outside.verdicts_of_run(checked, None) == outside.verdicts_of_run(checked, shipped) != []
    assert outside.problems_of(shipped) == validate(shipped)
    assert outside.problems_of_evidence(checked) == verify(checked.path) != []
    assert outside.statuses_in(file_of(shipped)) == statuses_of(file_of(shipped))
