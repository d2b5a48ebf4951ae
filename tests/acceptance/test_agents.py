"""An agent through the one loop: killed and resumed, stopped before a bad step, learning, and evaluated."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance import harness
from tests.agents import under_contract
from trainwright import app, runs, yamlfile
from trainwright.config import RunConfig
from trainwright.jsonfile import read_json
from trainwright.runs import RunResult

DATA = {"environment": "CartPole-v1", "environments": 4, "rollout_steps": 16, "validation_episodes": 4}
PENDULUM = {**DATA, "environment": "Pendulum-v1", "environments": 2, "validation_episodes": 2}


def agent(**changes: Any) -> dict[str, Any]:
    """Give the configuration of a small agent: 4 environments × 16 steps, 8 updates a rollout, 15 rollouts."""
    model = {"type": "ppo", "hidden_dims": [16], "update_epochs": 4}
    return under_contract(**{"model": model, "data": DATA, "train__batch_size": 32, **changes})


def execute(runs_dir: Path, **changes: Any) -> RunResult:
    return runs.execute(RunConfig.parse(agent(**changes)), runs_dir=runs_dir)


@pytest.mark.parametrize("data", [pytest.param(DATA, marks=pytest.mark.long), PENDULUM], ids=["discrete", "continuous"])
def test_an_agent_killed_again_and_again_equals_the_uncut_one(data: dict[str, Any], tmp_path: Path) -> None:
    normal = {**data, "normalize_observations": True, "normalize_rewards": True}
    values = agent(data=normal, train__steps=130)
    harness.assert_exact_when_killed(values, tmp_path, ("step", 9), ("step", 30), ends=(0, 3))


def test_a_reward_that_is_no_number_stops_before_the_step_and_the_last_checkpoint_stays_good(tmp_path: Path) -> None:
    poisoned = {**DATA, "environment": "tests.games:Poisoned-v0", "environment_options": {"after": 70}}
    result = execute(tmp_path, data=poisoned, validate__at_start=False)
    assert (result.exit_code, result.step) == (4, 32), "the fifth rollout holds the first bad reward"
    last = result.run.read_steps()[-1]
    assert last.step == 32
    assert last.train_loss != last.train_loss
    assert not [verdict for verdict in result.verdicts if verdict.gate == "GATE-AGENT-005" and verdict.holds]
    assert max(result.run.checkpoints.glob("step-*/manifest.json")).parent.name.startswith("step-00000028")


def test_an_environment_that_cannot_be_replayed_is_on_record_as_not_exact(tmp_path: Path) -> None:
    data = {**DATA, "environment": "tests.games:Forgets-v0"}
    run = execute(tmp_path, data=data, train__steps=9, contract=None).run
    [told] = [event for event in run.read_events() if event.kind == "not_exact"]
    assert told.step == 0
    assert told.detail["reason"].startswith("tests.games:Forgets-v0 is not exact: one seed and the same 32 actions")


def test_a_child_run_goes_on_in_the_episodes_of_its_parent(tmp_path: Path) -> None:
    values: dict[str, Any] = {"contract": None, "schedule__kind": "constant", "checkpoint": {}, "validate__every": 1000}
    parent = execute(tmp_path / "parts", train__steps=20, **values).run
    child = app.resume(parent.path, ["train.steps=33"], runs_dir=tmp_path / "parts").run
    whole = execute(tmp_path / "whole", train__steps=33, **values).run
    assert harness.last_tensors(child) == harness.last_tensors(whole)


def test_a_short_run_under_the_contract_has_evidence_for_every_gate_that_applies(tmp_path: Path) -> None:
    result = execute(tmp_path, train__steps=120)
    decided = {verdict.gate: verdict.result for verdict in result.verdicts if verdict.kind == "run"}
    assert set(decided.values()) <= {"pass", "not_applicable", "fail"}
    assert {gate for gate, found in decided.items() if found == "fail"} <= {"GATE-AGENT-004"}, "it may not have learnt"
    without_target, of_longer_runs, of_dqn = {"003"}, {"012"}, {"018", "019", "020"}
    not_applicable = {gate.rpartition("-")[2] for gate, found in decided.items() if found == "not_applicable"}
    assert not_applicable == without_target | of_longer_runs | of_dqn


def test_a_budget_of_environment_steps_ends_with_the_rollout_that_reaches_it(tmp_path: Path) -> None:
    values = agent(contract=None)
    values["train"] = {**values["train"], "steps": None, "env_steps": 200}
    result = runs.execute(RunConfig.parse(values), runs_dir=tmp_path)
    rows = result.run.read_steps()
    assert result.why == "budget of 200 environment steps reached"
    assert [rows[-1].extra["env_steps"], len(rows)] == [256.0, 32]
    assert read_json(result.run.environment)["planned_steps"] == 32


def test_an_epoch_of_environment_steps_is_on_record_and_no_data_wrap_around(tmp_path: Path) -> None:
    data = {**DATA, "env_steps_per_epoch": 128}
    run = execute(tmp_path, data=data, train__steps=50, contract=None, validate__every="1 epoch").run
    begun = [(event.step, event.detail["epoch"]) for event in run.read_events() if event.kind == "epoch_began"]
    assert begun == [(16, 1), (32, 2), (48, 3)]
    assert not [event for event in run.read_events() if event.kind == "wrapped_data"]
    assert [(row.step, row.epoch) for row in run.read_validations()] == [(0, 0), (16, 1), (32, 2), (48, 3), (50, 3)]


def test_an_agent_that_is_told_of_no_environment_steps_refuses_their_budget(tmp_path: Path) -> None:
    values = harness.config()
    values["train"] = {**values["train"], "steps": None, "env_steps": 200}
    (tmp_path / "run.yaml").write_text(yamlfile.dump(values))
    completed = harness.command(tmp_path, "train", "run.yaml")
    assert completed.code == 2
    assert "train.env_steps: model type 'tests.toys:Toy' acts in no environment" in completed.err


def test_evaluate_prints_the_mean_of_episodes_with_its_error_and_writes_nothing(tmp_path: Path) -> None:
    run = execute(tmp_path / "runs", train__steps=40).run
    with harness.left_as_it_was(run.path):
        shown = harness.command(tmp_path, "evaluate", run.id, "--episodes", 6, "--checkpoint", "last")
        told = harness.command(tmp_path, "evaluate", run.id, "--episodes", 6, "--checkpoint", "last", "--json")
        other = harness.command(tmp_path, "evaluate", run.id, "--episodes", 6, "--seed", 1, "--json")
    assert (shown.code, told.code, other.code) == (0, 0, 0)
    found = json.loads(told.out)
    assert (found["episodes"], found["seed"], found["step"], found["metric"]) == (6, 0, 40, "episode_return")
    assert shown.out.startswith(f"episode_return {found['value']:.2f} ± {found['standard_error']:.2f} over 6 episodes")
    assert json.loads(other.out)["value"] != found["value"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--episodes", "1"], "--episodes 1: a standard error needs 2 or more"),
        (["--checkpoint", "worst"], "checkpoint 'worst' is not one of: best, last"),
    ],
)
def test_an_evaluation_that_cannot_be_made_is_refused(options: list[str], message: str, tmp_path: Path) -> None:
    run = execute(tmp_path / "runs", train__steps=8).run
    completed = harness.command(tmp_path, "evaluate", run.id, *options)
    assert (completed.code, completed.out) == (2, "")
    assert message in completed.err


def test_an_agent_is_evaluated_in_its_own_environment_alone(tmp_path: Path) -> None:
    run = execute(tmp_path / "runs", train__steps=8).run
    completed = harness.command(tmp_path, "evaluate", run.id, "--data", tmp_path)
    assert completed.code == 2
    assert "is evaluated in the environment of its run alone; leave --data out" in completed.err
