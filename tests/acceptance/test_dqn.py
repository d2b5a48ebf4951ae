"""An agent that learns from a replay, through the one loop: killed and resumed, stopped before a bad step, judged."""

from pathlib import Path
from typing import Any

import pytest

from tests.acceptance import harness
from tests.agents import under_contract
from trainwright import runs
from trainwright.config import RunConfig
from trainwright.runs import RunResult

DATA = {"environment": "CartPole-v1", "environments": 4, "acting_steps": 4, "round_samples": 128}
SIZES = {"replay_size": 200, "learning_starts": 64, "validation_episodes": 4}
PRIORITY: dict[str, Any] = {"priority": {"beta_env_steps": 500}}


def agent(**changes: Any) -> dict[str, Any]:
    """Give a small agent: rounds of 4 environments × 4 steps and 8 updates, a replay of 200 steps, 64 at first."""
    model = {"type": "dqn", "hidden_dims": [16], "epsilon_env_steps": 400, "target_every": 10}
    return under_contract(**{"model": model, "data": {**DATA, **SIZES}, "train__batch_size": 16, **changes})


def execute(runs_dir: Path, **changes: Any) -> RunResult:
    return runs.execute(RunConfig.parse(agent(**changes)), runs_dir=runs_dir)


@pytest.mark.parametrize(
    ("data", "model"),
    [
        pytest.param({}, {}, marks=pytest.mark.long),
        (PRIORITY, {"n_step": 3, "dueling": True, "target_rate": 0.2, "target_every": 1}),
    ],
    ids=["uniform", "prioritized, dueling, 3 steps, soft target"],
)
def test_an_agent_killed_again_and_again_equals_the_uncut_one(
    data: dict[str, Any], model: dict[str, Any], tmp_path: Path
) -> None:
    values = agent(train__steps=130)
    values["data"] |= data
    values["model"] |= model
    pair = harness.assert_exact_when_killed(values, tmp_path, ("step", 9), ("step", 30), ("step", 47), ends=(0, 3))
    segments = [sorted(path.name for path in (run.checkpoints / "segments").iterdir()) for run in pair]
    assert segments[0] == segments[1]
    assert segments[0], "whole blocks of the replay are segments"


@pytest.mark.parametrize("data", [{}, PRIORITY], ids=["uniform", "prioritized"])
def test_a_reward_that_is_no_number_stops_before_the_step_and_the_last_checkpoint_stays_good(
    data: dict[str, Any], tmp_path: Path
) -> None:
    poisoned = {**DATA, **SIZES, **data, "environment": "tests.games:Poisoned-v0", "environment_options": {"after": 30}}
    result = execute(tmp_path, data=poisoned, validate__at_start=False)
    assert (result.exit_code, result.outcome.label) == (4, "aborted")
    last = result.run.read_steps()[-1]
    assert (last.step, last.train_loss != last.train_loss) == (result.step, True)
    assert last.step >= 24, "the fourth round after the first, of 4 × 30 good steps, holds the first bad reward"
    assert not [verdict for verdict in result.verdicts if verdict.gate == "GATE-AGENT-005" and verdict.holds]


def test_a_short_run_under_the_contract_has_evidence_for_every_gate_that_applies(tmp_path: Path) -> None:
    slowly = {"train__steps": 1000, "train__learning_rate": 1e-3, "model__target_every": 50}
    result = execute(tmp_path, **slowly, validate__every=250)
    decided = {verdict.gate: verdict.result for verdict in result.verdicts if verdict.kind == "run"}
    assert {gate for gate, found in decided.items() if found == "fail"} <= {"GATE-AGENT-004"}, "it may not have learnt"
    assert {gate for gate, found in decided.items() if found == "not_applicable"} == {
        "GATE-AGENT-003",
        "GATE-AGENT-012",
        "GATE-AGENT-013",
    }
    assert all(decided[f"GATE-AGENT-{number:03}"] == "pass" for number in (18, 19, 20))


def test_a_budget_of_environment_steps_ends_with_the_round_that_reaches_it(tmp_path: Path) -> None:
    values = agent(contract=None)
    values["train"] = {**values["train"], "steps": None, "env_steps": 200}
    result = runs.execute(RunConfig.parse(values), runs_dir=tmp_path)
    rows = result.run.read_steps()
    assert result.why == "budget of 200 environment steps reached"
    assert [rows[-1].extra["env_steps"], len(rows)] == [208.0, 8 * 10], "ten rounds, the first of them of 64 steps"


def test_accumulated_batches_take_as_many_updates_of_as_many_samples(tmp_path: Path) -> None:
    big = execute(tmp_path / "big", train__steps=24, contract=None).run.read_steps()
    small = execute(tmp_path / "small", train__steps=24, train__batch_size=4, train__accumulate=4, contract=None)
    for one, other in zip(big, small.run.read_steps(), strict=True):
        assert other.train_loss == pytest.approx(one.train_loss, rel=1e-4)
        assert one.extra["env_steps"] == other.extra["env_steps"]
        assert one.extra["samples"] == other.extra["samples"] == 16
