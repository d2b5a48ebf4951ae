"""What is common to agents that act and learn in turn: in a round they act some steps, then learn some batches.

A round is a rollout and the updates on it, or a few steps into a replay and the updates from it.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np

from trainwright.data.environments import Environments
from trainwright.errors import DamagedCheckpointError
from trainwright.models.agents import Agent
from trainwright.state import State, StateValue, require, under_prefix, with_prefix
from trainwright.trainable import Rounds, Unit

RECENT_EPISODES: Final = 100


class RoundSource:
    """The base of sources of batches in rounds; another round is `due` when the batches of one are used up.

    `acted` counts the environment steps of a round, `batches` its batches. The state is the place in the round and the
    environments', beside what a subclass learns from.
    """

    unit: Unit = "samples"
    items_per_epoch = None

    def __init__(self, environments: Environments, *, acted: int, batches: int, rounds_per_epoch: int) -> None:
        self.environments = environments
        self._acted, self._batches, self._rounds_per_epoch = acted, batches, rounds_per_epoch
        self.rounds, self._taken = 0, batches
        self.recent: deque[float] = deque(maxlen=RECENT_EPISODES)

    @property
    def due(self) -> bool:
        """Tell whether the next batch needs another round of acting."""
        return self._taken == self._batches

    @property
    def env_steps(self) -> int:
        """Give the environment steps acted so far."""
        return self.rounds * self._acted

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
    def alternation(self) -> Rounds | None:
        """Give what a round consists of; None where one may end early."""
        return Rounds(self._acted, self._batches)

    @property
    def micro_batches_per_epoch(self) -> int | None:
        return self._rounds_per_epoch * self._batches

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

    def next_batch(self) -> Any:
        """Give a batch of the round that was begun last; none is given while a round is `due`."""
        raise NotImplementedError

    def validation_batches(self) -> Iterator[Any]:
        """Give none: an agent is validated by episodes."""
        return iter(())

    def begin_round(self, returns: Sequence[float]) -> None:
        """Begin on a round in whose acting episodes of these returns ended."""
        self.rounds, self._taken = self.rounds + 1, 0
        self.recent.extend(returns)

    def save(self) -> dict[str, StateValue]:
        return {
            "rounds": self.rounds,
            "taken": self._taken,
            "recent": cast("StateValue", list(self.recent)),
            **with_prefix("environments", self.environments.save()),
        }

    def load(self, state: State) -> None:
        """Go on where `save` was. Errors: DamagedCheckpointError for an entry that is missing or does not fit."""
        rounds, taken = cast("int", require(state, "rounds")), cast("int", require(state, "taken"))
        if not 0 <= taken <= self._batches:
            raise DamagedCheckpointError(f"entry 'taken' is {taken!r}; a round has {self._batches} batches")
        recent = cast("list[float]", require(state, "recent"))
        self.environments.load(under_prefix("environments", state))
        self.recent = deque(recent, maxlen=RECENT_EPISODES)
        self.rounds, self._taken = rounds, taken


class RoundAgent(Agent):
    """The base of agents whose source is a `RoundSource`."""

    source: RoundSource

    @property
    def env_steps_learnt(self) -> int:
        return self.source.env_steps_learnt

    @property
    def env_steps_per_epoch(self) -> int:
        return self.source.env_steps_per_epoch

    @property
    def rounds(self) -> Rounds | None:
        return self.source.alternation
