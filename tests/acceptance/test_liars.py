"""Runs of small planted liars under the shipped contract: each is caught by name, and the honest twin passes."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.acceptance import harness
from trainwright import runs
from trainwright.config import RunConfig
from trainwright.outcome import Outcome
from trainwright.runs import RunResult

CONTRACT = "training-loop-pretrain-v1"
LIES: Mapping[str, set[str]] = {
    "Honest": set(),
    "StoredRate": {"GATE-TRAIN-LR", "GATE-TRAIN-APPLIED"},
    "OwnRate": {"GATE-TRAIN-APPLIED"},
    "ConstantNorm": {"GATE-TRAIN-NORM", "GATE-TRAIN-CONSTANT"},
    "FrozenHead": {"GATE-TRAIN-MOVED"},
    "OneBatch": {"GATE-TRAIN-BATCHES"},
    "Leaking": {"GATE-TRAIN-OVERLAP"},
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return harness.token_shards(tmp_path_factory.mktemp("shards"))


def trained(name: str, shards: Path, runs_dir: Path) -> RunResult:
    """Train 24 steps of a language model from scratch; every eighth is audited."""
    model = {"type": f"tests.liars:{name}", "layers": 2, "width": 32, "heads": 2, "context": 16}
    values = harness.language_model(
        shards,
        contract=CONTRACT,
        model=model,
        train__steps=24,
        train__learning_rate=5e-3,
        validate__every=8,
        checkpoint__every=None,
    )
    return runs.execute(RunConfig.parse(values), runs_dir=runs_dir)


@pytest.mark.parametrize("name", LIES)
def test_a_planted_liar_fails_the_gate_of_its_lie_and_no_other(name: str, shards: Path, tmp_path: Path) -> None:
    result = trained(name, shards, tmp_path)
    failing = {verdict.gate for verdict in result.verdicts if verdict.result == "fail"}
    assert failing == LIES[name], [verdict.reason for verdict in result.verdicts if verdict.result == "fail"]
    assert result.outcome is (Outcome.GATE_FAILED if failing else Outcome.DONE), result.why
    for gate in failing:
        assert gate in result.why
