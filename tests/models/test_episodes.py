"""One episode of an agent as a panel: what was expected at each step, and the return that then came."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.acceptance.test_agents import DATA, agent
from trainwright.config import RunConfig
from trainwright.data.environments import Kind
from trainwright.equality import bit_differences
from trainwright.models.build import build
from trainwright.models.episodes import LONGEST, episode_panel


def zeros(observations_nf: Any) -> Any:
    return np.zeros(len(observations_nf), np.int64)


def tens(observations_nf: Any) -> Any:
    return np.full(len(observations_nf), 10.0)


@pytest.mark.parametrize(
    ("environment", "options", "followed"),
    [
        ("tests.games:Ends-v0", {}, [1.75, 1.5, 1.0]),  # a terminated episode has nothing after it
        ("tests.games:Walks-v0", {}, [2.5, 3.0, 4.0, 6.0]),  # one that was cut goes on as expected: 1 + 10 / 2
    ],
)
def test_what_followed_is_the_discounted_return_and_where_it_was_cut_the_expectation(
    environment: str, options: dict[str, Any], followed: list[float]
) -> None:
    panel = episode_panel(Kind(environment, options), 0, zeros, tens, discount=0.5)
    came, expected = panel.lines
    assert came.y == followed
    assert expected.y == [10.0] * len(followed)
    assert came.x == expected.x == list(range(len(followed)))
    assert ("it was cut there: what would have followed is what the agent expected" in panel.about) is (
        environment == "tests.games:Walks-v0"
    )


def test_a_long_episode_is_shown_up_to_a_bound() -> None:
    panel = episode_panel(Kind("MountainCar-v0", {"max_episode_steps": 5 * LONGEST}), 0, zeros, tens, discount=1.0)
    assert len(panel.lines[0].y) == LONGEST


@pytest.mark.parametrize("model", ["ppo", "dqn"])
def test_an_agent_shows_an_episode_and_is_the_same_after_it(model: str) -> None:
    data = DATA if model == "ppo" else {k: v for k, v in DATA.items() if k != "rollout_steps"}
    options = {"type": model, "hidden_dims": [8]}
    config = RunConfig.parse(agent(model=options, data=data, contract=None)).resolved()
    trainable: Any = build(config, torch.device("cpu"))
    trainable.next_batch()
    before = trainable.save_checkpoint()
    [panel] = trainable.illustrate()
    assert len(panel.lines[0].y) == len(panel.lines[1].y) > 1
    assert list(bit_differences(before, trainable.save_checkpoint())) == []
    assert trainable.training
