"""Generalised advantages against a plain sum and a public implementation, and the order of minibatches."""

from typing import Any

import numpy as np
import pytest
import torch

from trainwright.data.environments import Environments, Kind
from trainwright.models.rollouts import (
    Rollout,
    RolloutSource,
    Samples,
    explained_variance,
    generalized_advantages,
)

STEPS, COUNT, DISCOUNT, DECAY = 40, 3, 0.97, 0.9


def facts(seed: int = 0) -> dict[str, Any]:
    drawn = np.random.default_rng(seed)
    ended = drawn.random((STEPS, COUNT))
    values = drawn.normal(size=(STEPS + 1, COUNT)).astype(np.float32)
    truncated = (ended > 0.1) & (ended < 0.2)
    last_seen = drawn.normal(size=(STEPS, COUNT)).astype(np.float32)
    return {
        "rewards_tn": drawn.normal(size=(STEPS, COUNT)),
        "values_tn": values[:-1],
        "next_values_tn": np.where(truncated, last_seen, values[1:]),
        "terminated_tn": ended < 0.1,
        "truncated_tn": truncated,
    }


def advantages(**given: Any) -> Any:
    return generalized_advantages(**given, discount=DISCOUNT, decay=DECAY)


def by_the_sum(given: dict[str, Any], t: int, n: int) -> float:
    """Schulman et al. 2016, equation 16, term by term up to the end of the episode or of the rollout."""
    total, weight = 0.0, 1.0
    for later in range(t, STEPS):
        after = 0.0 if given["terminated_tn"][later, n] else float(given["next_values_tn"][later, n])
        total += weight * (given["rewards_tn"][later, n] + DISCOUNT * after - float(given["values_tn"][later, n]))
        if given["terminated_tn"][later, n] or given["truncated_tn"][later, n]:
            break
        weight *= DISCOUNT * DECAY
    return total


def test_advantages_equal_the_sum_of_the_paper() -> None:
    given = facts()
    assert given["terminated_tn"].any()
    assert given["truncated_tn"].any()
    expected = [[by_the_sum(given, t, n) for n in range(COUNT)] for t in range(STEPS)]
    assert np.abs(advantages(**given) - np.array(expected)).max() < 1e-6


def test_a_terminated_episode_has_nothing_after_it_and_a_truncated_one_has() -> None:
    one = {"rewards_tn": np.ones((1, 1)), "values_tn": np.zeros((1, 1)), "next_values_tn": np.full((1, 1), 10.0)}
    no, yes = np.zeros((1, 1), bool), np.ones((1, 1), bool)
    assert advantages(**one, terminated_tn=yes, truncated_tn=no)[0, 0] == 1.0
    assert advantages(**one, terminated_tn=no, truncated_tn=yes)[0, 0] == pytest.approx(1 + DISCOUNT * 10)


@pytest.mark.parametrize("ends", ["terminated_tn", "truncated_tn"])
def test_what_follows_an_episode_does_not_reach_back_into_it(ends: str) -> None:
    given = facts() | {"terminated_tn": np.zeros((STEPS, COUNT), bool), "truncated_tn": np.zeros((STEPS, COUNT), bool)}
    given[ends][20] = True
    before = advantages(**given)[:21].tobytes()
    given["rewards_tn"][21:] += 5
    assert advantages(**given)[:21].tobytes() == before


def test_advantages_equal_those_of_stable_baselines3() -> None:
    buffers = pytest.importorskip("stable_baselines3.common.buffers")
    spaces = pytest.importorskip("gymnasium").spaces
    """It knows truncation as a reward that holds the value of what followed."""
    given = facts()
    ended = given["terminated_tn"] | given["truncated_tn"]
    rewards = given["rewards_tn"] + DISCOUNT * given["next_values_tn"] * given["truncated_tn"]
    buffer = buffers.RolloutBuffer(
        STEPS, spaces.Box(-1, 1, (1,)), spaces.Discrete(2), device="cpu", gae_lambda=DECAY, gamma=DISCOUNT, n_envs=COUNT
    )
    starts = np.vstack([np.zeros((1, COUNT), bool), ended])
    for t in range(STEPS):
        value, log_prob = torch.from_numpy(given["values_tn"][t]), torch.zeros(COUNT)
        none = np.zeros((COUNT, 1))
        buffer.add(none, none, rewards[t], starts[t], value, log_prob)
    buffer.compute_returns_and_advantage(torch.from_numpy(given["next_values_tn"][-1]), starts[-1])
    assert np.abs(buffer.advantages - advantages(**given)).max() < 1e-5


def test_explained_variance_is_1_for_a_perfect_critic_and_0_for_the_mean() -> None:
    returns = np.array([1.0, 2.0, 6.0])
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(np.full(3, 3.0), returns) == pytest.approx(0.0)
    assert explained_variance(returns, np.ones(3)) is None


def source(*, seed: int = 0, ends_early: bool = False) -> RolloutSource:
    environments = Environments(Kind("CartPole-v1"), 2, seed)
    sizes = {"rollout_steps": 6, "batch_size": 4, "epochs": 3, "rollouts_per_epoch": 2}
    return RolloutSource(environments, **sizes, seed=seed, ends_early=ends_early)


def rollout() -> Rollout:
    numbers = torch.arange(12.0)
    return Rollout(Samples(numbers[:, None], *[numbers] * 5), 0.5)


def test_each_pass_over_a_rollout_gives_each_sample_once_in_an_order_of_its_own() -> None:
    made = source()
    assert made.due
    made.take_in(rollout(), [])
    passes = [torch.cat([made.next_batch().actions for _ in range(3)]).tolist() for _ in range(3)]
    assert made.due
    assert all(sorted(order) == list(range(12)) for order in passes)
    assert len({tuple(order) for order in passes}) == 3


def test_a_pass_counts_environment_steps_that_are_learnt_from() -> None:
    made = source()
    told = []
    for _ in range(4):
        made.take_in(rollout(), [])
        for _ in range(9):
            told.append((made.env_steps, made.env_steps_learnt, made.epoch, made.micro_batches_left))
            made.next_batch()
    assert told[0] == (12, 0, 0, 9)
    assert told[8] == (12, 0, 0, 1)
    assert told[18] == (36, 24, 1, 9)
    assert (made.epoch, made.env_steps_per_epoch, made.micro_batches_per_epoch) == (2, 24, 18)


def test_a_rollout_that_may_end_early_has_no_fixed_number_of_updates() -> None:
    made = source(ends_early=True)
    made.take_in(rollout(), [])
    made.next_batch()
    made.end_rollout()
    assert made.due
    assert (made.micro_batches_per_epoch, made.env_steps_learnt) == (None, 12)
