"""Batches out of a replay, in rounds: some steps are acted, then some samples are learnt from, until acting is `due`.

Shapes in names: t rows, n environments, b samples, f features.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast, final

import numpy as np
import torch
from torch import Tensor

from trainwright.data.environments import Array, Environments
from trainwright.data.priorities import Priorities
from trainwright.data.replay import Replay
from trainwright.errors import DamagedCheckpointError
from trainwright.state import State, StateValue, require, under_prefix, with_prefix
from trainwright.trainable import DataSize, Rounds, Unit

RECENT_EPISODES: Final = 100
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
class ReplaySource:
    """Batches of `round_samples` samples a round, drawn by numbers that depend on seed and round alone.

    A sample's number depends on its place in the round, so micro-batches are parts of the one big batch. `beta` is the
    exponent of importance weights; without `priorities` each transition is drawn as often as any other. The state is
    the replay, the place in the round and the environments'.
    """

    unit: Unit = "samples"
    items_per_epoch = None

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
        self.environments, self.replay, self._priorities, self._beta = environments, replay, priorities, beta
        self._acted, self._first_rounds, self._rounds_per_epoch = acted, first_rounds, rounds_per_epoch
        self._round_samples, self._batch_size, self._seed = round_samples, batch_size, seed
        self._batches = round_samples // batch_size
        self.rounds, self._taken = 0, self._batches
        self._shares: Array | None = None
        self._drawn: Sequence[Replayed] | None = None
        self.newest: Acted | None = None
        self.recent: deque[float] = deque(maxlen=RECENT_EPISODES)

    @property
    def due(self) -> bool:
        """Tell whether the next batch needs another round of acting: of no round before `first_rounds` is learnt."""
        return self._taken == self._batches or self.is_warming_up

    @property
    def is_warming_up(self) -> bool:
        """Tell whether the next round is one of those that are acted before anything is learnt."""
        return self.rounds < self._first_rounds

    @property
    def env_steps(self) -> int:
        """Give the environment steps acted so far."""
        return self.rounds * self._acted

    @property
    def data_size(self) -> DataSize:
        """Give the bytes of the whole replay, the copy of it that checkpoints share, and the priorities."""
        ring_bytes, priorities = self.replay.size_bytes, self._priorities
        tree_bytes = priorities.size_bytes if priorities else 0
        leaves_bytes = 8 * self.replay.places if priorities else 0
        return DataSize(held_bytes=2 * ring_bytes + tree_bytes, saved_bytes=ring_bytes + leaves_bytes)

    @property
    def env_steps_learnt(self) -> int:
        """Give the environment steps of rounds that have been used to their end."""
        return (self.rounds - (not self.due)) * self._acted

    @property
    def env_steps_per_epoch(self) -> int:
        return self._rounds_per_epoch * self._acted

    @property
    def epoch(self) -> int:
        return self.env_steps_learnt // self.env_steps_per_epoch

    @property
    def micro_batches_per_epoch(self) -> int:
        """Give the batches of an epoch; the first one has fewer: nothing is learnt of the first rounds but the last."""
        return self._rounds_per_epoch * self._batches

    @property
    def alternation(self) -> Rounds:
        return Rounds(self._acted, self._batches, unlearnt=self._first_rounds - 1)

    @property
    def micro_batches_left(self) -> int:
        """Give the batches left in the round: no update accumulates over two of them."""
        return self._batches if self.due else self._batches - self._taken

    @property
    def hashes(self) -> Mapping[str, str]:
        return {"data": self.environments.kind.sha256}

    @property
    def episode_return(self) -> float | None:
        """Give the mean return of the last 100 episodes that ended; None before the first."""
        return float(np.mean(self.recent)) if self.recent else None

    def take_in(self, acted: Acted, written_before: int) -> None:
        """Begin on a new round, of which the rows from `written_before` on are in the replay."""
        self.rounds, self._taken = self.rounds + 1, 0
        self._shares = self._drawn = None
        self.newest = acted
        self.recent.extend(acted.returns)
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

    def validation_batches(self) -> Iterator[Any]:
        """Give none: an agent is validated by episodes."""
        return iter(())

    def save(self) -> dict[str, StateValue]:
        newest = self.newest
        return {
            "rounds": self.rounds,
            "taken": self._taken,
            "recent": cast("StateValue", list(self.recent)),
            "newest": None if newest is None else [newest.epsilon, newest.random_share],
            **with_prefix("environments", self.environments.save()),
            **with_prefix("replay", self.replay.save()),
            **with_prefix("priorities", {} if self._priorities is None else self._priorities.save()),
        }

    def load(self, state: State) -> None:
        """Go on where `save` was. Errors: DamagedCheckpointError for an entry that is missing or does not fit."""
        rounds, taken = cast("int", require(state, "rounds")), cast("int", require(state, "taken"))
        if not 0 <= taken <= self._batches:
            raise DamagedCheckpointError(f"entry 'taken' is {taken!r}; a round has {self._batches} batches")
        newest = cast("tuple[float, float] | None", require(state, "newest"))
        self.recent = deque(cast("list[float]", require(state, "recent")), maxlen=RECENT_EPISODES)
        self.environments.load(under_prefix("environments", state))
        self.replay.load(under_prefix("replay", state))
        if self._priorities is not None:
            self._priorities.load(under_prefix("priorities", state))
        self.rounds, self._taken = rounds, taken
        self.newest = None if newest is None else Acted(*newest, ())
        self._shares = self._drawn = None
