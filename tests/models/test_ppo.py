"""PPO: its loss against the paper, its options, and what is normalised."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.agents import PENDULUM, ppo
from trainwright.candidates import stored, update
from trainwright.config import RunConfig
from trainwright.errors import InputError
from trainwright.models.build import build
from trainwright.models.ppo import PPO
from trainwright.models.ppo_options import PPODataOptions
from trainwright.steps import gradients

CPU = torch.device("cpu")


def agent(**changes: Any) -> PPO:
    built = build(RunConfig.parse(ppo(**changes)).resolved(), CPU)
    assert isinstance(built, PPO)
    return built


# -- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train__batch_size": 24}, r"train\.batch_size: a batch of 24 does not divide the 32 samples of a rollout"),
        ({"data__env_steps_per_epoch": 40}, r"env_steps_per_epoch is 40; expected whole rollouts: a multiple .*, 32"),
        ({"data__environment": "CartPole-v9"}, r"data\.environment: environment 'CartPole-v9' cannot be made"),
        ({"model__hidden_dims": []}, "hidden_dims"),
        ({"model__hidden_dims": 64}, "hidden_dims"),
        ({"model__clip_range": 0}, "clip_range"),
    ],
)
def test_options_that_do_not_fit_are_refused_by_their_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        agent(**changes)


def test_hidden_dims_are_the_layers_of_actor_and_critic() -> None:
    made = agent(model__hidden_dims=[8, 24])
    shapes = {name: tuple(p.shape) for name, p in made.named_parameters() if name.endswith("weight")}
    assert shapes == {
        **{f"policy.actor.{i}.weight": s for i, s in ((0, (8, 4)), (2, (24, 8)), (4, (2, 24)))},
        **{f"policy.critic.{i}.weight": s for i, s in ((0, (8, 4)), (2, (24, 8)), (4, (1, 24)))},
    }


def test_data_options_have_defaults_but_for_the_environment() -> None:
    assert PPODataOptions(environment="CartPole-v1").samples == 1024


# -- the loss --------------------------------------------------------------------------------------------------------


def test_the_loss_is_that_of_the_paper_sample_by_sample() -> None:
    made = agent(model__entropy_coefficient=0.01, model__value_clip=0.2)
    for _ in range(5):
        update(made)
    batch = made.next_batch()
    scores, predicted = made.forward(batch)
    loss, count = made.compute_loss((scores, predicted), batch)
    expected = []
    for i in range(count):
        policy: Any = torch.distributions.Categorical(logits=scores[i])
        ratio = (policy.log_prob(batch.actions[i]) - batch.log_probs[i]).exp()
        advantage = batch.advantages[i]
        objective = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        near = batch.values[i] + (predicted[i] - batch.values[i]).clamp(-0.2, 0.2)
        error = torch.max((predicted[i] - batch.returns[i]) ** 2, (near - batch.returns[i]) ** 2)
        expected.append(-objective + 0.5 * error - 0.01 * policy.entropy())
    torch.testing.assert_close(loss, torch.stack(expected).mean())
    assert count == 16


def test_the_first_update_of_a_rollout_is_made_on_the_policy_that_acted() -> None:
    made = agent()
    told = []
    for _ in range(7):  # a rollout is 6 updates
        update(made)
        told.append(made.collect_metrics())
    for first in (told[0], told[6]):
        assert first["approx_kl"] == pytest.approx(0.0, abs=1e-6)
        assert first["clip_fraction"] == 0.0
    assert (told[5]["approx_kl"] or 0.0) > 1e-5


def test_advantages_of_a_rollout_have_mean_0_and_deviation_1() -> None:
    made = agent()
    whole = torch.cat([made.next_batch().advantages for _ in range(2)])
    assert whole.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert whole.std(correction=0).item() == pytest.approx(1.0, abs=1e-5)


def test_the_clip_range_follows_the_learning_rate_where_asked_to() -> None:
    made = agent(model__clip_schedule="as_learning_rate", train__learning_rate=1e-3)
    made.learning_rate = 2.5e-4
    assert made.clip_range == pytest.approx(0.05)
    constant = agent()
    constant.learning_rate = 1e-9
    assert constant.clip_range == 0.2


def test_a_divergence_above_the_target_leaves_the_rest_of_the_rollout_out() -> None:
    made = agent(model__target_kl=1e-9, train__learning_rate=0.05)
    acted = []
    for _ in range(6):
        update(made)
        acted.append(made.source.rounds)
    assert acted == [1, 1, 2, 2, 3, 3], "the first update of a rollout has no divergence, the second has"


def test_metrics_are_of_the_samples_of_all_micro_batches_of_a_step() -> None:
    whole, parts = agent(train__batch_size=32), agent(train__batch_size=8)
    parts.load_weights(stored(whole))
    for made, count in ((whole, 1), (parts, 4)):
        gradients(made, count)
        made.optimizer_step()
    ours, theirs = whole.collect_metrics(), parts.collect_metrics()
    for name in ("policy_loss", "value_loss", "entropy"):
        assert ours[name] == pytest.approx(theirs[name], rel=1e-5, abs=1e-7)


def test_numbers_that_nothing_was_measured_of_yet_are_none() -> None:
    made = agent(**PENDULUM)
    update(made)
    told = made.collect_metrics()
    assert told["episode_return"] is None
    assert told["env_steps"] == 32.0
    assert all(value is not None for name, value in told.items() if name != "episode_return")


# -- normalisation ---------------------------------------------------------------------------------------------------


def test_normalisation_changes_what_is_seen_from_the_second_rollout_on_and_its_state_is_saved() -> None:
    made = agent(**PENDULUM)
    first = made.next_batch().seen
    assert first.abs().max() <= 8.0
    moments = made.policy.moments
    assert moments is not None
    assert moments.count.item() == 32
    for _ in range(6):
        update(made)
    second = torch.cat([made.next_batch().seen for _ in range(2)])
    assert second.mean(0).abs().max() < 2.0
    saved = stored(made)
    assert {"model.policy.moments.mean", "model.return_moments.variance", "source.discounted"} <= saved.keys()
    assert saved["source.discounted"].abs().sum() > 0  # type: ignore[union-attr]  # a tensor


def test_rewards_are_scaled_by_the_deviation_of_discounted_returns() -> None:
    made = agent(**PENDULUM)
    made.next_batch()
    deviation = made.return_moments
    assert deviation is not None
    rewards = np.stack([made.environments.step(np.zeros((2, 1))).rewards_n for _ in range(8)])
    assert deviation.scale().item() > np.abs(rewards).std()
