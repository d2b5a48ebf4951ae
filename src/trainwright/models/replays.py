"""Batches out of a replay, in rounds: some steps are acted, then some samples are learnt from, until acting is `due`.

Shapes in names: t rows, n environments, b samples, f features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, cast, final

import numpy as np
import torch
from torch import Tensor

from trainwright.data.environments import Array, Environments
from trainwright.data.priorities import Priorities
from trainwright.data.replay import Replay
from trainwright.models.rounds import RoundSource
from trainwright.state import State, StateValue, require, under_prefix, with_prefix
from trainwright.trainable import DataSize, Rounds

DRAWS: Final = 3  # what a stream of random numbers is for


@dataclass(frozen=True, slots=True)
class Line:
    """A number that goes straight from `start` to `end` over `length` environment steps, and stays there."""

    start: float
    end: float
    length: int

    def at(self, env_steps: Array) -> Array:
        share = np.minimum(1.0, env_steps / self.length)
        return np.asarray(self.start * (1 - share) + self.end * share)


class Replayed(NamedTuple):
    """`data.replay.Transitions` as tensors, with the weight (b,) of each sample and its place (b,) in the replay."""

    seen: Tensor
    actions: Tensor
    returns: Tensor
    following: Tensor
    discounts: Tensor
    weights: Tensor
    places: Tensor


class Acted(NamedTuple):
    """A round of acting: ε and the measured share of random actions over it, and the returns of episodes that ended."""

    epsilon: float
    random_share: float
    returns: Sequence[float]


@final
class ReplaySource(RoundSource):
    """Batches of `round_samples` samples a round, drawn by numbers that depend on seed and round alone.

    A sample's number depends on its place in the round, so micro-batches are parts of the one big batch. `beta` is the
    exponent of importance weights; without `priorities` each transition is drawn as often as any other. The state is
    the replay, the place in the round and the environments'.
    """

    def __init__(
        self,
        environments: Environments,
        replay: Replay,
        priorities: Priorities | None,
        *,
        beta: Line,
        acted: int,
        first_rounds: int,
        rounds_per_epoch: int,
        round_samples: int,
        batch_size: int,
        seed: int,
    ) -> None:
        batches = round_samples // batch_size
        super().__init__(environments, acted=acted, batches=batches, rounds_per_epoch=rounds_per_epoch)
        self.replay, self._priorities, self._beta = replay, priorities, beta
        self._first_rounds, self._round_samples = first_rounds, round_samples
        self._batch_size, self._seed = batch_size, seed
        self._shares: Array | None = None
        self._drawn: Sequence[Replayed] | None = None
        self.newest: Acted | None = None

    @property
    def due(self) -> bool:
        """Tell whether the next batch needs another round of acting: of no round before `first_rounds` is learnt."""
        return super().due or self.is_warming_up

    @property
    def is_warming_up(self) -> bool:
        """Tell whether the next round is one of those that are acted before anything is learnt."""
        return self.rounds < self._first_rounds

    @property
    def data_size(self) -> DataSize:
        """Give the bytes of the whole replay, the copy of it that checkpoints share, and the priorities."""
        ring_bytes, priorities = self.replay.size_bytes, self._priorities
        tree_bytes = priorities.size_bytes if priorities else 0
        leaves_bytes = 8 * self.replay.places if priorities else 0
        return DataSize(held_bytes=2 * ring_bytes + tree_bytes, saved_bytes=ring_bytes + leaves_bytes)

    @property
    def alternation(self) -> Rounds:
        return Rounds(self._acted, self._batches, unlearnt=self._first_rounds - 1)

    def take_in(self, acted: Acted, written_before: int) -> None:
        """Begin on a new round, of which the rows from `written_before` on are in the replay."""
        self.begin_round(acted.returns)
        self._shares = self._drawn = None
        self.newest = acted
        if self._priorities is not None:
            replay = self.replay
            incomplete = replay.written - replay.n_step + 1
            self._priorities.withdraw(replay.places_of_rows(max(incomplete, replay.oldest), replay.written))
            first = max(written_before - replay.n_step + 1, replay.oldest)
            self._priorities.admit(replay.places_of_rows(first, max(first, incomplete)))

    def next_batch(self) -> Replayed:
        assert not self.due
        self._taken += 1
        if self._shares is None:
            self._shares = np.random.default_rng([DRAWS, self._seed, self.rounds]).random(self._round_samples)
        if self._priorities is not None:
            begin = (self._taken - 1) * self._batch_size
            return self._prioritized(self._priorities, self._shares[begin : begin + self._batch_size])
        if self._drawn is None:
            self._drawn = self._uniform(self._shares)
        return self._drawn[self._taken - 1]

    def _uniform(self, shares: Array) -> Sequence[Replayed]:
        """Draw all batches of the round at once: nothing changes what they are drawn from before its end."""
        numbers = (shares * self.replay.complete).astype(np.int64)
        drawn = self._at(self.replay.places_of(numbers), np.ones(len(numbers), np.float32))
        return [
            Replayed(*parts) for parts in zip(*(torch.split(part, self._batch_size) for part in drawn), strict=True)
        ]

    def _prioritized(self, priorities: Priorities, shares_b: Array) -> Replayed:
        places_b = priorities.draw(shares_b)
        return self._at(places_b, priorities.weights(places_b, float(self._beta.at(np.asarray(self.env_steps)))))

    def _at(self, places_b: Array, weights_b: Array) -> Replayed:
        return Replayed(*map(torch.from_numpy, (*self.replay.at(places_b), weights_b, places_b)))

    def learn_errors(self, places_b: Tensor, errors_b: Tensor) -> None:
        """Let what was mispredicted be drawn by its error from now on."""
        if self._priorities is not None:
            self._priorities.learn(places_b.cpu().numpy(), errors_b.cpu().numpy())

    def save(self) -> dict[str, StateValue]:
        newest = self.newest
        return {
            **super().save(),
            "newest": None if newest is None else [newest.epsilon, newest.random_share],
            **with_prefix("replay", self.replay.save()),
            **with_prefix("priorities", {} if self._priorities is None else self._priorities.save()),
        }

    def load(self, state: State) -> None:
        super().load(state)
        newest = cast("tuple[float, float] | None", require(state, "newest"))
        self.replay.load(under_prefix("replay", state))
        if self._priorities is not None:
            self._priorities.load(under_prefix("priorities", state))
        self.newest = None if newest is None else Acted(*newest, ())
        self._shares = self._drawn = None
