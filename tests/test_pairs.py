from pathlib import Path
from typing import Any

import pytest

from tests.acceptance import harness
from trainwright.config import RunConfig
from trainwright.errors import InputError
from trainwright.evidence import verify
from trainwright.metrics import read_checks
from trainwright.pairs import STEPS, determinism

CONTRACT = "training-loop-pretrain-v1"


def pair_config(kind: str = "tests.toys:Toy", contract: str | None = CONTRACT) -> RunConfig:
    values: dict[str, Any] = harness.config(train__steps=5, validate__every=50, checkpoint={"keep_last": 1})
    values["model"]["type"] = kind
    return RunConfig.parse({**values, "contract": contract})


def test_equal_seeds_give_equal_runs_and_another_seed_gives_others(tmp_path: Path) -> None:
    found = determinism(pair_config(), runs_dir=tmp_path)
    assert [(v.gate, v.result) for v in found.verdicts] == [("GATE-TRAIN-006", "pass")]
    assert [len(run.read_steps()) for run in found.runs] == [STEPS] * 3
    assert verify(found.record.path) == []
    assert [row["equal_steps"] for row in read_checks(found.record.checks)] == [STEPS, 0]


@pytest.mark.parametrize("liar", ["tests.liars:Unseeded", "tests.liars:Seedless"])
def test_a_model_that_its_seed_does_not_decide_is_caught(liar: str, tmp_path: Path) -> None:
    found = determinism(pair_config(liar), runs_dir=tmp_path)
    assert [(v.gate, v.result) for v in found.verdicts] == [("GATE-TRAIN-006", "fail")]


def test_without_a_gate_over_pairs_there_is_nothing_to_decide(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no gate of kind pair"):
        determinism(pair_config(contract=None), runs_dir=tmp_path)
    assert not list(tmp_path.iterdir())
