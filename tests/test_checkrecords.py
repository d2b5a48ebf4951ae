"""Records of checks: which gates one decides, whether it holds, and that its own files say the same."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.acceptance import harness
from trainwright.accumulation import MICRO_BATCHES, UPDATES, Accumulation
from trainwright.checkrecords import Record, decides_pairs, record_accumulation, record_checks
from trainwright.config import RunConfig
from trainwright.contract.load import parse_contract
from trainwright.evidence import verify
from trainwright.outcome import Outcome

CPU = torch.device("cpu")
HEAD = """\
id: mixed-v1
version: 1.0.0
title: Gates of every kind
purpose: for records of checks
changelog: [{version: 1.0.0, changes: [first]}]
metrics: [{name: step, unit: count, since: 1.0.0, meaning: number of the update}]
gates:
  - id: GATE-MIXED-RUN
    claim: a step was made
    rows: steps
    figures: {steps: count(step)}
    holds: steps > 0
    fixtures: {good: [{steps: {step: [0]}}], bad: [{steps: {step: [null]}}]}
"""
GATE = """\
  - id: GATE-MIXED-{name}
    claim: nothing is wrong
    kind: {kind}
    on_fail: {on_fail}
    rows: checks where name = '{name}'
    figures: {{wrong: sum(wrong)}}
    holds: wrong = 0
    fixtures: {{good: [{{checks: {{name: {name}, wrong: 0}}}}], bad: [{{checks: {{name: {name}, wrong: 1}}}}]}}
"""


def recorded(folder: Path, *rows: tuple[str, int], on_fail: str = "fail") -> Record:
    """Record rows of (name, wrong) under two gates over pairs and two probes."""
    gates = [("EQUAL", "pair"), ("CLOSE", "pair"), ("NAMES", "probe"), ("SPEED", "probe")]
    text = HEAD + "".join(GATE.format(name=name, kind=kind, on_fail=on_fail) for name, kind in gates)
    found = [{"name": name, "wrong": wrong} for name, wrong in rows]
    return record_checks("mixed", folder, parse_contract(text, "mixed.yaml"), environment={"device": "cpu"}, rows=found)


def results(record: Record) -> dict[str, str]:
    return {verdict.gate.removeprefix("GATE-MIXED-"): verdict.result for verdict in record.verdicts}


@pytest.mark.parametrize(
    ("rows", "on_fail", "decided", "holds"),
    [
        ([("EQUAL", 0)], "fail", {"EQUAL": "pass"}, True),
        ([("EQUAL", 0), ("CLOSE", 1)], "fail", {"EQUAL": "pass", "CLOSE": "fail"}, False),
        ([("EQUAL", 1)], "warn", {"EQUAL": "fail"}, True),
        ([("NAMES", 0), ("SPEED", 0)], "fail", {"NAMES": "pass", "SPEED": "pass"}, True),
        ([("NAMES", 0)], "fail", {"NAMES": "pass", "SPEED": "no_evidence"}, False),
        ([("NAMES", 0)], "warn", {"NAMES": "pass", "SPEED": "no_evidence"}, True),
        ([("EQUAL", 0), ("SPEED", 1)], "fail", {"EQUAL": "pass", "SPEED": "fail"}, False),
    ],
    ids=["a pair", "a pair that fails", "only warns", "probes", "a probe is missing", "and only warns", "both"],
)
def test_a_record_holds_by_what_it_decides_and_its_files_agree(
    rows: list[tuple[str, int]], on_fail: str, decided: dict[str, str], holds: bool, tmp_path: Path
) -> None:
    record = recorded(tmp_path, *rows, on_fail=on_fail)
    assert (results(record), record.holds) == (decided, holds)
    result = record.run.read_result()
    assert result is not None
    assert result.outcome == (Outcome.DONE if holds else Outcome.GATE_FAILED).label
    assert verify(record.run.path) == []


def toy(**changes: Any) -> RunConfig:
    return RunConfig.parse(harness.config(**{"contract": "training-loop-pretrain-v1", **changes}))


@pytest.mark.parametrize(("difference", "result"), [(0.9e-5, "pass"), (1.1e-5, "fail")])
def test_accumulation_is_judged_from_a_sealed_record(difference: float, result: str, tmp_path: Path) -> None:
    exact = Accumulation(2, MICRO_BATCHES, UPDATES, 0.0, 0.0, 0.0, 0.0)
    record = record_accumulation(toy(), replace(exact, norm_difference=difference), CPU, runs_dir=tmp_path)
    assert [(v.gate, v.result) for v in record.verdicts] == [("GATE-TRAIN-ACCUMULATE", result)]
    assert record.holds == (result == "pass")
    assert verify(record.run.path) == []


def test_a_configuration_decides_pairs_when_its_contract_has_a_gate_over_them() -> None:
    assert decides_pairs(toy())
    assert not decides_pairs(toy(contract=None))
    assert not decides_pairs(toy(contract="gpu-training-backend-v1"))
