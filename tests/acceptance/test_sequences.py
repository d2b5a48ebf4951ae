"""Whole sequences through the one loop: judged by their contract, and stopped before a bad step."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import labelled
from trainwright import runs
from trainwright.config import RunConfig
from trainwright.runs import RunResult

CONTRACT = "training-loop-sequence-v1"
TASKS = {"classification": labelled.file_of_waves, "regression": labelled.file_of_counts}
OF_TASK = {"classification": {"005", "007"}, "regression": {"006"}}


def sequences(task: str, folder: Path, **changes: Any) -> dict[str, Any]:
    own = {"contract": CONTRACT, "model__task": task, "validate__every": 40, "checkpoint__every": 7}
    return labelled.values(TASKS[task](folder), **{**own, **changes})


def execute(values: dict[str, Any], runs_dir: Path) -> RunResult:
    return runs.execute(RunConfig.parse(values), runs_dir=runs_dir)


def failing(result: RunResult) -> set[str]:
    decided = [verdict for verdict in result.verdicts if verdict.kind == "run"]
    return {verdict.gate.removeprefix("GATE-SEQUENCE-") for verdict in decided if not verdict.holds}


@pytest.mark.parametrize("task", TASKS)
def test_a_run_under_the_contract_holds_it(task: str, tmp_path: Path) -> None:
    result = execute(sequences(task, tmp_path), tmp_path)
    assert result.exit_code == 0, result.why
    decided = {verdict.gate.removeprefix("GATE-SEQUENCE-"): verdict.result for verdict in result.verdicts}
    assert {gate for gate, found in decided.items() if found == "pass"} >= OF_TASK[task] | {"012", "013", "015", "022"}
    others = OF_TASK["regression" if task == "classification" else "classification"]
    assert {gate for gate, found in decided.items() if found == "not_applicable"} == {"003", "004"} | others


@pytest.mark.parametrize(("task", "target", "gate"), [("classification", 1.01, "003"), ("regression", 1e-9, "004")])
def test_a_target_that_is_not_reached_fails_its_gate_alone(task: str, target: float, gate: str, tmp_path: Path) -> None:
    result = execute(sequences(task, tmp_path, train__target=target), tmp_path)
    assert (failing(result), result.exit_code) == ({gate}, 3)


@pytest.mark.parametrize("task", TASKS)
def test_what_learns_nothing_is_no_better_than_what_knows_nothing(task: str, tmp_path: Path) -> None:
    values = sequences(task, tmp_path)
    arrays = dict(np.load(values["data"]["path"]))
    stream = np.random.default_rng(0)
    for name in ("y", "y_validation"):
        arrays[name] = stream.permutation(arrays[name])
    np.savez(values["data"]["path"], **arrays)
    assert failing(execute(values, tmp_path)) >= OF_TASK[task] - {"007"}


def test_sequences_that_were_held_out_and_trained_on_are_found(tmp_path: Path) -> None:
    values = sequences("classification", tmp_path)
    arrays = dict(np.load(values["data"]["path"]))
    for name in ("x", "y", "lengths"):
        arrays[name][:150] = arrays[f"{name}_validation"][:150]
    np.savez(values["data"]["path"], **arrays)
    assert failing(execute(values, tmp_path)) == {"015"}


def test_a_model_that_is_right_but_far_too_sure_is_found(tmp_path: Path) -> None:
    values = sequences("classification", tmp_path, model__type="tests.labelled:TooSure", train__steps=40)
    result = execute(values, tmp_path)
    assert failing(result) == {"007"}


def test_a_target_that_is_too_large_for_a_float_stops_before_the_step(tmp_path: Path) -> None:
    values = sequences("regression", tmp_path, train__learning_rate=1e30, optimizer__weight_decay=0.0)
    result = execute(values, tmp_path)
    assert result.exit_code == 4, result.why
