"""DQN: its loss and targets against the papers and a public implementation, its options, and what is saved of it."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812  torch's own convention

from tests.agents import EVERYTHING, PRIORITY, dqn
from trainwright.candidates import stored, update
from trainwright.config import RunConfig
from trainwright.equality import bit_differences
from trainwright.errors import InputError
from trainwright.models.build import build
from trainwright.models.dqn import DQN
from trainwright.models.networks import QNetwork
from trainwright.models.replays import Replayed
from trainwright.steps import gradients

CPU = torch.device("cpu")


def agent(**changes: Any) -> DQN:
    built = build(RunConfig.parse(dqn(**changes)).resolved(), CPU)
    assert isinstance(built, DQN)
    return built


def after(updates: int, **changes: Any) -> DQN:
    made = agent(**changes)
    for _ in range(updates):
        update(made)
    return made


def told(made: DQN, name: str) -> float:
    value = made.collect_metrics()[name]
    assert value is not None
    return value


# -- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train__batch_size": 24}, r"train\.batch_size: a batch of 24 does not divide the 64 samples of a round"),
        ({"data__env_steps_per_epoch": 40}, r"env_steps_per_epoch is 40; expected whole rounds: a multiple .*, 16"),
        (
            {"data__environment": "Pendulum-v1"},
            r"data\.environment: environment 'Pendulum-v1' has actions that are numb",
        ),
        ({"data__learning_starts": 401}, r"learning_starts is 401; expected at most replay_size, which is 400"),
        (
            {"data__replay_size": 64, "model__n_step": 40},
            r"data\.replay_size: a replay of 64 holds 32 steps of each of 2",
        ),
        (
            {"data__learning_starts": 0, "model__n_step": 9},
            r"data\.learning_starts: learning starts after 8 steps of ea",
        ),
        (
            {"model__epsilon_end": 0.9, "model__epsilon_start": 0.5},
            r"epsilon_end is 0.9; expected at most epsilon_start",
        ),
        ({"data__priority": {"gamma": 1}}, "unknown key 'data.priority.gamma'"),
        ({"model__target_rate": 0.0}, "target_rate"),
    ],
)
def test_options_that_do_not_fit_are_refused_by_their_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        agent(**changes)


# -- the network -----------------------------------------------------------------------------------------------------


def network(hidden: list[int], *, dueling: bool) -> QNetwork:
    torch.manual_seed(0)
    return QNetwork(3, 4, hidden, activation="relu", dueling=dueling)


def test_hidden_dims_are_the_layers_of_the_network_and_of_its_target() -> None:
    made = agent(model__hidden_dims=[8, 24])
    shapes = [tuple(p.shape) for name, p in made.named_parameters() if name.endswith("weight")]
    assert shapes == [(8, 4), (24, 8), (2, 24)] * 2
    assert made.parameter_count == (4 + 1) * 8 + (8 + 1) * 24 + (24 + 1) * 2


@pytest.mark.parametrize("hidden", [[5], [5, 6], [5, 6, 7]])
def test_a_dueling_network_is_the_states_value_and_advantages_whose_mean_is_0(hidden: list[int]) -> None:
    made, seen = network(hidden, dueling=True), torch.randn(9, 3)
    below = seen if made.shared is None else made.bend(made.shared(seen))
    assert made.value is not None
    torch.testing.assert_close(made(seen).mean(1), made.value(below).squeeze(1))
    advantages = made.advantages(below)
    torch.testing.assert_close(made(seen).diff(dim=1), advantages.diff(dim=1))


# -- the loss --------------------------------------------------------------------------------------------------------


def samples(made: DQN) -> Replayed:
    """Give four samples whose targets can be computed by hand, of which the last has nothing after it."""
    torch.manual_seed(1)
    numbers = torch.tensor([1.0, 2.0, -1.0, 5.0])
    return Replayed(
        torch.randn(4, 4),
        torch.tensor([0, 1, 1, 0]),
        numbers,
        torch.randn(4, 4),
        torch.tensor([0.9, 0.9, 0.9, 0.0]),
        torch.tensor([1.0, 0.5, 0.25, 1.0]),
        torch.arange(4),
    )


@pytest.mark.parametrize("double", [True, False])
def test_a_target_is_the_reward_and_what_the_target_network_says_of_the_action_chosen(*, double: bool) -> None:
    made = after(3, model__double=double)
    batch = samples(made)
    predicted = made.forward(batch)
    for i in range(4):
        by_target, by_network = made.target(batch.following[i]), made.network(batch.following[i])
        best = by_target[(by_network if double else by_target).argmax()]
        taken = made.network(batch.seen[i])[batch.actions[i]]
        assert predicted.q_b[i].item() == pytest.approx(taken.item(), rel=1e-5, abs=1e-6)
        moved_to = (batch.returns[i] + batch.discounts[i] * best).item()
        assert predicted.target_b[i].item() == pytest.approx(moved_to, rel=1e-5, abs=1e-6)
    assert predicted.target_b[3] == 5.0, "nothing follows it"
    assert not predicted.target_b.requires_grad


def test_double_chooses_by_one_network_and_judges_by_the_other() -> None:
    made = agent(model__double=True)
    with torch.no_grad():
        for net, sign in ((made.network, 1.0), (made.target, -1.0)):
            for parameter in net.parameters():
                parameter.zero_()
            net.get_parameter("advantages.2.bias").copy_(torch.tensor([sign, -sign]))
    assert made.forward(samples(made)).target_b[0] == pytest.approx(1.0 + 0.9 * -1.0)
    made.dqn = made.dqn.model_copy(update={"double": False})
    assert made.forward(samples(made)).target_b[0] == pytest.approx(1.0 + 0.9 * 1.0)


def test_the_loss_is_smooth_below_an_error_of_1_and_weighted_by_importance() -> None:
    made, weighted = agent(), agent(**PRIORITY)
    batch = samples(made)
    predicted = made.forward(batch)._replace(q_b=torch.tensor([0.0, 1.0, 2.0, 4.5]), target_b=torch.tensor([0.5] * 4))
    errors = [0.5 * 0.25, 0.5 * 0.25, 1.5 - 0.5, 4.0 - 0.5]
    loss, count = made.compute_loss(predicted, batch)
    assert loss.item() == pytest.approx(sum(errors) / 4)
    assert count == 4
    loss, _ = weighted.compute_loss(predicted, batch)
    assert loss.item() == pytest.approx((errors[0] + errors[1] / 2 + errors[2] / 4 + errors[3]) / 4)


def test_loss_and_gradients_equal_those_of_stable_baselines3_on_its_own_replay() -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    theirs = sb3.DQN(
        "MlpPolicy",
        "CartPole-v1",
        batch_size=64,
        learning_starts=100,
        train_freq=100,
        gradient_steps=1,
        target_update_interval=1000,
        max_grad_norm=1e9,
        policy_kwargs={"net_arch": [32, 32]},
        device="cpu",
        seed=0,
    )
    theirs.learn(300)
    ours = agent(model__hidden_dims=[32, 32], model__double=False, model__discount=0.99)
    for net, theirs_net in ((ours.network, theirs.q_net), (ours.target, theirs.q_net_target)):
        net.advantages.load_state_dict(theirs_net.q_net.state_dict())
    theirs.set_random_seed(5)
    drawn = theirs.replay_buffer.sample(64)
    theirs.set_random_seed(5)
    theirs.train(gradient_steps=1, batch_size=64)
    batch = Replayed(
        drawn.observations,
        drawn.actions.squeeze(1),
        drawn.rewards.squeeze(1),
        drawn.next_observations,
        (1 - drawn.dones.squeeze(1)) * 0.99,
        torch.ones(64),
        torch.zeros(64, dtype=torch.int64),
    )
    loss, _ = ours.compute_loss(ours.forward(batch), batch)
    ours.backward(loss)
    assert loss.item() == pytest.approx(theirs.logger.name_to_value["train/loss"], abs=1e-6)
    pairs = list(zip(ours.network.parameters(), theirs.q_net.parameters(), strict=True))
    for one, other in pairs:
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-6)
    assert max(float(other.grad.abs().max()) for _, other in pairs) > 1e-3


def test_the_loss_of_an_update_is_the_one_that_torch_has() -> None:
    made = agent()
    batch = made.next_batch()
    predicted = made.forward(batch)
    loss, _ = made.compute_loss(predicted, batch)
    assert loss.item() == F.smooth_l1_loss(predicted.q_b, predicted.target_b).item()


# -- the target ------------------------------------------------------------------------------------------------------


def distance(made: DQN) -> float:
    pairs = zip(made.network.parameters(), made.target.parameters(), strict=True)
    return max((one - other).abs().max().item() for one, other in pairs)


def test_a_hard_target_is_a_copy_after_each_sixth_update_and_stands_still_between() -> None:
    made, far = agent(), []
    for _ in range(13):
        update(made)
        far.append(distance(made) > 0)
    assert [number for number, apart in enumerate(far, 1) if not apart] == [6, 12]


def test_a_soft_target_moves_by_its_rate() -> None:
    made = agent(model__target_every=1, model__target_rate=0.25)
    before = [parameter.clone() for parameter in made.target.parameters()]
    update(made)
    for old, target, parameter in zip(before, made.target.parameters(), made.network.parameters(), strict=True):
        torch.testing.assert_close(target, old + 0.25 * (parameter - old))


@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_a_masked_step_moves_neither_target_nor_priorities(rate: float) -> None:
    made = after(5, **PRIORITY, model__target_rate=rate)
    gradients(made, 1)
    before = stored(made)
    made.optimizer_step(torch.ones(()))
    assert made.step == 6, "the target was due"
    assert {name for name, _ in bit_differences(before, stored(made))} == {"step"}
    made.step = 5
    gradients(made, 1)
    made.optimizer_step(torch.zeros(()))
    changed = {name for name, _ in bit_differences(before, stored(made))}
    assert {"model.target.advantages.0.weight", "source.priorities.priorities"} <= changed


# -- acting and learning ---------------------------------------------------------------------------------------------


def test_an_agent_acts_when_a_round_is_used_up_and_a_step_is_an_update() -> None:
    made, acted = agent(), []
    for _ in range(9):
        update(made)
        acted.append(int(told(made, "env_steps")))
    assert acted == [64] * 4 + [80] * 4 + [96]
    assert (made.step, made.env_steps_learnt) == (9, 80)


def test_epsilon_is_a_straight_line_of_environment_steps_and_the_share_of_random_actions_is_measured() -> None:
    made = after(1)
    assert (told(made, "epsilon"), told(made, "random_share")) == (1.0, 1.0), "before anything is learnt"
    epsilons, shares = [], []
    for _ in range(160):
        update(made)
        epsilons.append(told(made, "epsilon"))
        shares.append(told(made, "random_share"))
    begun = np.arange(64, 80, 2)
    assert epsilons[3] == pytest.approx(np.mean(1 - 0.95 * begun / 400))
    assert epsilons == sorted(epsilons, reverse=True)
    assert epsilons[-1] == 0.05
    assert 0 < abs(np.mean(shares) - np.mean(epsilons)) < 0.1
    assert {share * 16 for share in shares} <= set(range(17)), "counted over 16 actions"


def test_each_round_and_seed_explores_in_its_own_way() -> None:
    rounds = set()
    for seed in (1, 2):
        replay = after(1, seed=seed).source.replay
        actions = replay.at(np.arange(replay.complete)).actions
        rounds |= {tuple(part) for part in actions.reshape(4, 16)}
    assert len(rounds) == 8, "of 16 actions each, all of them random"


def test_q_limit_is_what_the_largest_reward_for_ever_comes_to() -> None:
    made = after(1)
    assert told(made, "q_limit") == pytest.approx(100.0)
    assert after(1, model__discount=1.0).collect_metrics()["q_limit"] is None
    assert after(1).collect_metrics()["replay_filled"] == 32 / 200


def test_metrics_are_of_the_samples_of_all_micro_batches_of_a_step() -> None:
    whole, parts = agent(**EVERYTHING, train__batch_size=32), agent(**EVERYTHING, train__batch_size=8)
    parts.load_weights(stored(whole))
    for made, count in ((whole, 1), (parts, 4)):
        for _ in range(2):
            gradients(made, count)
            made.optimizer_step()
            made.zero_grad()
    ours, theirs = whole.collect_metrics(), parts.collect_metrics()
    for name in ("td_error", "q_mean"):
        assert ours[name] == pytest.approx(theirs[name], rel=1e-5, abs=1e-6)
    ours_after, theirs_after = (stored(made)["source.priorities.priorities"] for made in (whole, parts))
    torch.testing.assert_close(ours_after, theirs_after, rtol=1e-5, atol=1e-7)


def test_priorities_are_the_errors_that_a_step_that_was_taken_saw() -> None:
    made = agent(**PRIORITY)
    batch = made.next_batch()
    predicted = made.forward(batch)
    loss, _ = made.compute_loss(predicted, batch)
    made.backward(loss)
    before = stored(made)["source.priorities.priorities"]
    assert isinstance(before, torch.Tensor)
    assert set(before[batch.places].tolist()) == {1.0}, "none before the step"
    made.optimizer_step()
    after_it = stored(made)["source.priorities.priorities"]
    assert isinstance(after_it, torch.Tensor)
    expected = ((predicted.target_b - predicted.q_b).detach().abs().double() + 1e-6) ** 0.6
    torch.testing.assert_close(after_it[batch.places], expected, rtol=1e-6, atol=0)


# -- what survives ---------------------------------------------------------------------------------------------------


def test_a_save_between_gradient_and_step_changes_nothing() -> None:
    made, other = after(3, **PRIORITY), after(3, **PRIORITY)
    for one in (made, other):
        gradients(one, 1)
        if one is other:
            other.save_checkpoint()
        one.optimizer_step()
    assert not list(bit_differences(stored(made), stored(other)))
