"""What agents have in common, however they learn: what survives, and what validation and evaluation play."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import agents
from trainwright.candidates import Candidate, after_updates, stored, update
from trainwright.config import RunConfig
from trainwright.equality import bit_differences, entries_of
from trainwright.errors import InputError
from trainwright.models.agents import Agent
from trainwright.models.build import check as options_of
from trainwright.models.dqn_options import DQNOptions
from trainwright.models.ppo_options import PPOOptions
from trainwright.models.starting import starting_file
from trainwright.promises import check

CPU = torch.device("cpu")
EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
KINDS: Mapping[str, Callable[..., dict[str, Any]]] = {"ppo": agents.ppo, "dqn": agents.dqn}
AGENTS: Mapping[str, dict[str, Any]] = {
    "ppo": agents.ppo(),
    "ppo, continuous and normalised": agents.ppo(**agents.PENDULUM),
    "ppo, one batch a rollout": agents.ppo(train__batch_size=32),
    "dqn": agents.dqn(),
    "dqn, prioritized": agents.dqn(**agents.PRIORITY),
    "dqn, with everything": agents.dqn(**agents.EVERYTHING),
}


@pytest.fixture(params=AGENTS)
def candidate(request: pytest.FixtureRequest) -> Candidate:
    return Candidate(RunConfig.parse(AGENTS[request.param]).resolved(), CPU)


def after(candidate: Candidate, updates: int) -> Agent:
    made = after_updates(candidate, updates)
    assert isinstance(made, Agent)
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_dim_answers_with_the_right_name(kind: str) -> None:
    with pytest.raises(InputError, match=r"unknown key 'model.hidden_dim'; did you mean 'hidden_dims'\?"):
        options_of(RunConfig.parse(KINDS[kind](model__hidden_dim=64)).resolved())


@pytest.mark.parametrize("updates", [1, 4, 7, 120])
def test_the_next_50_batches_and_actions_after_a_load_are_equal(candidate: Candidate, updates: int) -> None:
    made, other = after(candidate, updates), after(candidate, 3)
    other.load_checkpoint(stored(made))
    learnt = made.env_steps_learnt or 0
    for _ in range(50):
        assert not list(bit_differences(entries_of(made.next_batch()), entries_of(other.next_batch())))
        for one in (made, other):
            update(one)
    assert (made.env_steps_learnt or 0) - learnt > 50 * len(made.environments), "actions that were taken since"
    assert not list(bit_differences(stored(made), stored(other)))


def test_validation_leaves_the_training_environments_alone_and_depends_on_the_step(candidate: Candidate) -> None:
    made = after(candidate, 3)
    before, first = stored(made), made.validate()
    assert not list(bit_differences(before, stored(made)))
    assert made.validate() == first
    assert first.n == made.data.validation_episodes
    assert first.standard_error is not None
    made.step += 1
    assert made.validate() != first, "other episodes"


def test_an_evaluation_plays_other_episodes_than_any_validation(candidate: Candidate) -> None:
    made = after(candidate, 0)
    assert made.evaluate(made.data.validation_episodes, made.setup.seed) != made.validate()
    assert made.evaluate(4, 0) == made.evaluate(4, 0) != made.evaluate(4, 1)


def test_every_promise_is_kept(candidate: Candidate) -> None:
    seen = {promise.name: promise.seen for promise in check(candidate).promises if promise.result != "holds"}
    assert seen == ({} if torch.cuda.is_available() else {"cuda": "no CUDA device"})


PRESETS = [*(("ppo", name) for name in PPOOptions.presets), *(("dqn", name) for name in DQNOptions.presets)]


def model_of(example: Path, **changes: Any) -> Any:
    """Give the checked options `model:` of an example; `changes` take the place of what it gives there."""
    given = RunConfig.load(example / "run.yaml")
    values = {**given.to_dict(), "model": changes} if changes else given.to_dict()
    return options_of(RunConfig.parse(values))[1]


def test_every_example_of_an_agent_has_its_preset() -> None:
    assert {f"{name}-{kind}" for kind, name in PRESETS} == {
        folder.name for kind in KINDS for folder in EXAMPLES.glob(f"*-{kind}")
    }


@pytest.mark.parametrize(("kind", "name"), PRESETS)
def test_a_preset_is_the_setting_of_its_example(kind: str, name: str) -> None:
    example = EXAMPLES / f"{name}-{kind}"
    by_preset = model_of(example, type=kind, preset=name)
    assert by_preset.model_copy(update={"preset": None}) == model_of(example)
    assert by_preset != model_of(example, type=kind), "that of another would do as well"


def test_a_given_value_wins_over_the_preset_and_this_one_over_the_default() -> None:
    found = DQNOptions(preset="mountaincar", discount=0.9)
    assert (found.discount, found.target_every, found.n_step) == (0.9, 300, 1)
    assert PPOOptions(preset="cartpole", clip_schedule="constant").clip_schedule == "constant"


@pytest.mark.parametrize(("kind", "told"), [("ppo", "cartpole"), ("dqn", "cartpole")])
def test_an_unknown_preset_is_told_with_the_nearest(kind: str, told: str) -> None:
    with pytest.raises(InputError, match=rf"unknown preset 'cartpol'; did you mean '{told}'\?"):
        options_of(RunConfig.parse(KINDS[kind](model__preset="cartpol")).resolved())
    with pytest.raises(InputError, match=rf"unknown preset 'breakout'; known presets: {told}, "):
        options_of(RunConfig.parse(KINDS[kind](model__preset="breakout")).resolved())


@pytest.mark.parametrize("kind", KINDS)
def test_the_starting_file_is_the_setting_of_the_example(kind: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(starting_file(kind))
    ours, example = (RunConfig.load(folder / "run.yaml") for folder in (tmp_path, EXAMPLES / f"cartpole-{kind}"))
    assert options_of(ours)[1:] == options_of(example)[1:]
    assert (ours.train, ours.optimizer, ours.schedule) == (example.train, example.optimizer, example.schedule)
