from pathlib import Path
from typing import Any

import pytest

from tests.acceptance import harness
from trainwright.config import RunConfig
from trainwright.errors import InputError
from trainwright.evidence import verify
from trainwright.metrics import read_checks
from trainwright.pairs import STEPS, Drift, determinism

CONTRACT = "training-loop-pretrain-v1"


def pair_config(kind: str = "tests.toys:Toy", contract: str | None = CONTRACT) -> RunConfig:
    values: dict[str, Any] = harness.config(train__steps=5, validate__every=50, checkpoint={"keep_last": 1})
    values["model"]["type"] = kind
    return RunConfig.parse({**values, "contract": contract})


def test_equal_seeds_give_equal_runs_and_another_seed_gives_others(tmp_path: Path) -> None:
    found = determinism(pair_config(), runs_dir=tmp_path, runs=3)
    assert [(v.gate, v.result) for v in found.record.verdicts] == [
        ("GATE-TRAIN-006", "pass"),
        ("GATE-TRAIN-DRIFT", "pass"),
    ]
    assert [len(run.read_steps()) for run in found.runs] == [STEPS] * 4
    assert found.drift == Drift(3, STEPS, 0.0, 0.0, 1.0)
    assert verify(found.record.run.path) == []
    rows = read_checks(found.record.run.checks)
    assert [row["equal_steps"] for row in rows if row["name"] == "determinism"] == [STEPS, STEPS, 0]
    assert [row["least_cosine"] for row in rows if row["name"] == "drift"] == [1.0]


@pytest.mark.parametrize(
    ("liar", "drift"),
    [("tests.liars:Unseeded", "pass"), ("tests.liars:Seedless", "pass"), ("tests.liars_of_promises:Drifts", "fail")],
)
def test_a_model_that_its_seed_does_not_decide_is_caught(liar: str, drift: str, tmp_path: Path) -> None:
    """What differs by less than rounding does is no drift, and is no equal run either."""
    found = determinism(pair_config(liar), runs_dir=tmp_path)
    assert [(v.gate, v.result) for v in found.record.verdicts] == [
        ("GATE-TRAIN-006", "fail"),
        ("GATE-TRAIN-DRIFT", drift),
    ]


def test_drift_is_the_largest_difference_at_any_step_the_last_spread_and_the_least_cosine(tmp_path: Path) -> None:
    found = determinism(pair_config("tests.liars:Unseeded"), runs_dir=tmp_path)
    ours, theirs = ([row.train_loss for row in run.read_steps()] for run in found.runs[:2])
    gaps = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
    assert found.drift.max_loss_difference == max(gaps) > 0
    assert found.drift.final_loss_spread == gaps[-1]
    assert 0.9 < found.drift.least_cosine < 1


def test_one_run_is_not_compared(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--runs 1: two runs"):
        determinism(pair_config(), runs_dir=tmp_path, runs=1)
    assert not list(tmp_path.iterdir())


def test_without_a_gate_over_pairs_there_is_nothing_to_decide(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no gate of kind pair"):
        determinism(pair_config(contract=None), runs_dir=tmp_path)
    assert not list(tmp_path.iterdir())
