"""Rounds of acting and learning: what is due, what is counted, and that each batch depends on seed and round alone."""

from typing import Any

import numpy as np
import pytest
import torch

from trainwright.data.environments import Environments, Kind
from trainwright.data.priorities import Priorities
from trainwright.data.replay import Replay
from trainwright.models.replays import Acted, Line, ReplaySource

COUNT, STEPS = 2, 3


def source(*, batch_size: int = 4, seed: int = 0, prioritized: bool = False, n_step: int = 1) -> ReplaySource:
    """Give one of rounds of 2 × 3 environment steps and 8 samples; the first three are acted before any is learnt."""
    replay = Replay(4, COUNT, rows=20, n_step=n_step, discount=0.9)
    return ReplaySource(
        Environments(Kind("CartPole-v1"), COUNT, 0),
        replay,
        Priorities(replay.places, alpha=1.0, floor=1e-6) if prioritized else None,
        beta=Line(0.4, 1.0, 100),
        acted=COUNT * STEPS,
        first_rounds=3,
        rounds_per_epoch=2,
        round_samples=8,
        batch_size=batch_size,
        seed=seed,
    )


def act(made: ReplaySource) -> None:
    before = made.replay.written
    for _ in range(STEPS):
        seen = made.environments.observations_nf
        actions = np.full(COUNT, made.replay.written % 2)
        made.replay.add(seen, actions, made.environments.step(actions))
    made.take_in(Acted(0.5, 0.4, [float(made.rounds)]), before)


def acted(rounds: int, **how: Any) -> ReplaySource:
    made = source(**how)
    for _ in range(rounds):
        act(made)
    return made


def test_nothing_is_learnt_before_the_first_rounds_are_acted() -> None:
    made = source()
    for rounds in range(3):
        assert (made.due, made.env_steps, made.env_steps_learnt) == (True, rounds * 6, rounds * 6)
        act(made)
    assert (made.due, made.is_warming_up, made.env_steps, made.env_steps_learnt) == (False, False, 18, 12)


def test_a_pass_counts_environment_steps_that_are_learnt_from() -> None:
    made, told = acted(3), []
    for _ in range(3):
        while not made.due:
            told.append((made.env_steps_learnt, made.epoch, made.micro_batches_left))
            made.next_batch()
        act(made)
    assert told == [(12, 1, 2), (12, 1, 1), (18, 1, 2), (18, 1, 1), (24, 2, 2), (24, 2, 1)]
    assert (made.env_steps_per_epoch, made.micro_batches_per_epoch) == (12, 4)
    assert made.episode_return == np.mean([0, 1, 2, 3, 4, 5])


@pytest.mark.parametrize("prioritized", [False, True])
def test_small_batches_are_parts_of_the_big_one(*, prioritized: bool) -> None:
    big, small = (acted(4, batch_size=size, prioritized=prioritized) for size in (8, 2))
    whole, parts = big.next_batch(), [small.next_batch() for _ in range(4)]
    for index, part in enumerate(whole):
        assert torch.equal(part, torch.cat([piece[index] for piece in parts]))


def test_each_round_and_seed_draws_other_samples() -> None:
    drawn = [acted(rounds, seed=seed, batch_size=8).next_batch().places for rounds, seed in ((4, 0), (5, 0), (4, 1))]
    assert len({tuple(places.tolist()) for places in drawn}) == 3


def test_samples_are_drawn_from_all_that_is_held_alike() -> None:
    made = acted(9)
    counts = np.zeros(made.replay.places)
    for _ in range(600):
        made.rounds, made._shares, made._drawn, made._taken = made.rounds + 1, None, None, 0
        for _ in range(2):
            np.add.at(counts, made.next_batch().places.numpy(), 1)
    assert counts.min() > 0.6 * counts.mean()
    assert counts.max() < 1.4 * counts.mean()


@pytest.mark.parametrize("n_step", [1, 2, 3])
@pytest.mark.parametrize("rounds", [3, 7, 9])
def test_what_has_no_whole_return_yet_is_not_drawn_by_priority(rounds: int, n_step: int) -> None:
    made = acted(rounds, prioritized=True, n_step=n_step)
    assert made._priorities is not None
    priorities = made._priorities.save()["priorities"]
    assert isinstance(priorities, torch.Tensor)
    drawable = np.flatnonzero(priorities.numpy())
    assert set(drawable) == set(made.replay.places_of(np.arange(made.replay.complete)))


def test_importance_weights_follow_beta_over_environment_steps() -> None:
    made = acted(5, prioritized=True)
    assert made._priorities is not None
    every = made.replay.places_of(np.arange(made.replay.complete))
    made._priorities.learn(every, np.arange(len(every)) + 1.0)
    batch = made.next_batch()
    beta = 0.4 + 0.6 * 30 / 100
    rank = {place: index + 1 for index, place in enumerate(every)}
    expected = [(1 / rank[place]) ** beta for place in batch.places.tolist()]
    assert batch.weights.tolist() == pytest.approx(expected, rel=1e-4)
    uniform = acted(5).next_batch()
    assert uniform.weights.tolist() == [1.0] * 4


def test_a_line_begins_at_its_start_and_stays_at_its_end() -> None:
    assert Line(1.0, 0.05, 10).at(np.array([0, 5, 10, 11])).tolist() == [1.0, pytest.approx(0.525), 0.05, 0.05]
