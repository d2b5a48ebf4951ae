"""Networks of agents held against torch's own distributions and moments."""

from typing import Any

import numpy as np
import pytest
import torch

from trainwright.data.environments import Actions
from trainwright.models.networks import ActorCritic, Categorical, Gaussian, Moments, perceptron

DISTRIBUTIONS: Any = torch.distributions  # untyped in torch


def test_log_probabilities_and_entropies_equal_those_of_torch() -> None:
    torch.manual_seed(0)
    logits, taken = torch.randn(9, 4), torch.randint(4, (9,))
    ours, theirs = Categorical.judge(logits, None, taken), DISTRIBUTIONS.Categorical(logits=logits)
    torch.testing.assert_close(ours.log_probs_b, theirs.log_prob(taken))
    torch.testing.assert_close(ours.entropies_b, theirs.entropy())
    means, log_std, actions = torch.randn(9, 3), torch.randn(3), torch.randn(9, 3)
    normal = DISTRIBUTIONS.Normal(means, log_std.exp())
    judged = Gaussian.judge(means, log_std, actions)
    torch.testing.assert_close(judged.log_probs_b, normal.log_prob(actions).sum(-1))
    torch.testing.assert_close(judged.entropies_b, normal.entropy().sum(-1))


def test_actions_are_drawn_as_often_as_the_policy_says() -> None:
    draws = 40_000
    logits = np.log(np.array([[0.1, 0.2, 0.7]], np.float32))
    noise = Categorical.noise(np.random.default_rng(0), (draws, 3))
    shares = np.bincount(Categorical.draw(logits, noise, None), minlength=3) / draws
    assert shares == pytest.approx([0.1, 0.2, 0.7], abs=0.01)
    drawn = Gaussian.draw(np.full((1, 1), 2.0), Gaussian.noise(np.random.default_rng(0), (draws, 1)), np.log([0.5]))
    assert (drawn.mean(), drawn.std()) == (pytest.approx(2.0, abs=0.02), pytest.approx(0.5, abs=0.02))


def test_moments_of_batches_are_those_of_all_rows() -> None:
    rows = torch.from_numpy(np.random.default_rng(0).normal(3, 5, size=(700, 2)))
    moments = Moments(2)
    assert torch.equal(moments(rows[:3].float()), rows[:3].float().clamp(-10, 10))
    for part in torch.split(rows, [1, 99, 600]):
        moments.update(part)
    torch.testing.assert_close(moments.mean, rows.mean(0))
    torch.testing.assert_close(moments.variance, rows.var(0, correction=0))
    assert moments.count.item() == 700
    assert moments(torch.full((1, 2), 1e6)).tolist() == [[10.0, 10.0]]


def test_layers_begin_orthogonal_with_biases_of_zero() -> None:
    net = perceptron([8, 8, 3], "tanh", last_gain=0.01)
    first, last = net[0], net[2]
    assert isinstance(first, torch.nn.Linear)
    assert isinstance(last, torch.nn.Linear)
    torch.testing.assert_close(first.weight @ first.weight.T, 2 * torch.eye(8))
    torch.testing.assert_close(last.weight @ last.weight.T, 1e-4 * torch.eye(3))
    assert not first.bias.any()


def test_a_new_policy_prefers_no_action() -> None:
    torch.manual_seed(0)
    policy = ActorCritic(4, Actions(discrete=True, count=2), [64], activation="tanh", log_std=0.0, normalize=False)
    scores, values = policy(torch.randn(50, 4))
    assert (scores.shape, values.shape) == ((50, 2), (50,))
    assert (scores.softmax(-1) - 0.5).abs().max() < 0.02
