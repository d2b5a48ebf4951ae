"""What a policy did in its environments, and how well: generalised advantages, and the minibatches of a rollout.

Shapes in names: t steps of a rollout, n environments, b samples (t × n, in that order), f features.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast, final

import numpy as np
import torch
from torch import Tensor

from trainwright.data.environments import Array, Environments
from trainwright.errors import DamagedCheckpointError
from trainwright.state import State, StateValue, require, require_tensor, under_prefix, with_prefix
from trainwright.trainable import Rounds, Unit

RECENT_EPISODES: Final = 100
ORDER: Final = 2  # what a stream of random numbers is for; acting has one for its noise


def generalized_advantages(
    rewards_tn: Array,
    values_tn: Array,
    next_values_tn: Array,
    terminated_tn: Array,
    truncated_tn: Array,
    *,
    discount: float,
    decay: float,
) -> Array:
    """Give the advantage of each action (Schulman et al. 2016, equations 11 and 16), in float32.

    `next_values_tn` are of what followed the action, before any reset: an episode that terminated has nothing after it,
    one that was truncated has. Neither carries an advantage over into the episode before it.
    """
    alive_tn, goes_on_tn = 1.0 - terminated_tn, 1.0 - (terminated_tn | truncated_tn)
    deltas_tn = rewards_tn + discount * alive_tn * next_values_tn - values_tn
    advantages_tn = np.zeros_like(deltas_tn)
    carried_n = np.zeros_like(deltas_tn[0])
    for t in range(len(deltas_tn) - 1, -1, -1):
        carried_n = deltas_tn[t] + discount * decay * goes_on_tn[t] * carried_n
        advantages_tn[t] = carried_n
    return advantages_tn.astype(np.float32)


class Samples(NamedTuple):
    """Samples of a rollout: what was seen (b, f) and done, and what the policy and its critic then said of that."""

    seen: Tensor
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor


@dataclass(frozen=True, slots=True)
class Rollout:
    """`samples` of one rollout. `explained_variance` is None where the returns do not vary."""

    samples: Samples
    explained_variance: float | None


def explained_variance(values: Array, returns: Array) -> float | None:
    """Give 1 - var(returns - values) / var(returns): 1 is a perfect critic, 0 one that knows the mean alone."""
    spread = float(np.var(returns))
    return None if spread == 0 else 1.0 - float(np.var(returns - values)) / spread


@final
class RolloutSource:
    """Minibatches of the newest rollout, `epochs` times through it, each time in another order; then one is `due`.

    The order depends on seed, rollout and epoch alone. The state is the rollout, the place in it and the environments'.
    """

    unit: Unit = "samples"
    items_per_epoch = None

    def __init__(
        self,
        environments: Environments,
        *,
        rollout_steps: int,
        batch_size: int,
        epochs: int,
        rollouts_per_epoch: int,
        seed: int,
        ends_early: bool,
    ) -> None:
        self.environments = environments
        self.samples = rollout_steps * len(environments)
        self._batch_size, self._epochs, self._seed = batch_size, epochs, seed
        self._rollouts_per_epoch, self._ends_early = rollouts_per_epoch, ends_early
        self.rollouts, self._taken = 0, epochs * (self.samples // batch_size)
        self._rollout: Rollout | None = None
        self._shuffled: tuple[int, Samples] | None = None
        self.recent: deque[float] = deque(maxlen=RECENT_EPISODES)

    @property
    def due(self) -> bool:
        """Tell whether the next batch needs a new rollout."""
        return self._taken == self._batches

    @property
    def _batches(self) -> int:
        return self._epochs * (self.samples // self._batch_size)

    @property
    def env_steps(self) -> int:
        """Give the environment steps acted so far."""
        return self.rollouts * self.samples

    @property
    def env_steps_learnt(self) -> int:
        """Give the environment steps of rollouts that have been used to their end."""
        return (self.rollouts - (not self.due)) * self.samples

    @property
    def env_steps_per_epoch(self) -> int:
        return self._rollouts_per_epoch * self.samples

    @property
    def epoch(self) -> int:
        return self.env_steps_learnt // self.env_steps_per_epoch

    @property
    def micro_batches_per_epoch(self) -> int | None:
        return None if self._ends_early else self._rollouts_per_epoch * self._batches

    @property
    def alternation(self) -> Rounds | None:
        return None if self._ends_early else Rounds(self.samples, self._batches)

    @property
    def micro_batches_left(self) -> int:
        """Give the batches left in the rollout: no update accumulates over two of them."""
        return self._batches if self.due else self._batches - self._taken

    @property
    def hashes(self) -> Mapping[str, str]:
        return {"data": self.environments.kind.sha256}

    @property
    def explained_variance(self) -> float | None:
        return None if self._rollout is None else self._rollout.explained_variance

    @property
    def episode_return(self) -> float | None:
        """Give the mean return of the last 100 episodes that ended; None before the first."""
        return float(np.mean(self.recent)) if self.recent else None

    def take_in(self, rollout: Rollout, returns: Sequence[float]) -> None:
        """Begin on a new rollout, in which episodes of these returns ended."""
        self.rollouts, self._taken = self.rollouts + 1, 0
        self._rollout, self._shuffled = rollout, None
        self.recent.extend(returns)

    def end_rollout(self) -> None:
        """Leave out what is left of the rollout."""
        self._taken = self._batches

    def next_batch(self) -> Samples:
        assert self._rollout is not None
        assert not self.due
        epoch, number = divmod(self._taken, self.samples // self._batch_size)
        self._taken += 1
        if self._shuffled is None or self._shuffled[0] != epoch:
            generator = np.random.default_rng([ORDER, self._seed, self.rollouts, epoch])
            order = torch.from_numpy(generator.permutation(self.samples))
            self._shuffled = epoch, Samples(*(part[order] for part in self._rollout.samples))
        begin = number * self._batch_size
        return Samples(*(part[begin : begin + self._batch_size] for part in self._shuffled[1]))

    def validation_batches(self) -> Iterator[Any]:
        """Give none: an agent is validated by episodes."""
        return iter(())

    def save(self) -> dict[str, StateValue]:
        position: dict[str, StateValue] = {
            "rollouts": self.rollouts,
            "taken": self._taken,
            "recent": cast("StateValue", list(self.recent)),
            "explained_variance": self.explained_variance,
            **with_prefix("environments", self.environments.save()),
        }
        samples = {} if self._rollout is None else self._rollout.samples._asdict()
        return {**position, **with_prefix("rollout", samples)}

    def load(self, state: State) -> None:
        """Go on where `save` was. Errors: DamagedCheckpointError for an entry that is missing or does not fit."""
        rollouts, taken = cast("int", require(state, "rollouts")), cast("int", require(state, "taken"))
        if not 0 <= taken <= self._batches:
            raise DamagedCheckpointError(f"entry 'taken' is {taken!r}; a rollout has {self._batches} batches")
        variance = cast("float | None", require(state, "explained_variance"))
        self.recent = deque(cast("list[float]", require(state, "recent")), maxlen=RECENT_EPISODES)
        self.environments.load(under_prefix("environments", state))
        self._rollout = Rollout(_samples_in(state, self.samples), variance) if rollouts else None
        self.rollouts, self._taken, self._shuffled = rollouts, taken, None


def _samples_in(state: State, count: int) -> Samples:
    # a copy: what a checkpoint's file is mapped to must not be what is trained on
    samples = Samples(*(require_tensor(state, f"rollout.{name}").clone() for name in Samples._fields))
    if any(len(part) != count for part in samples):
        raise DamagedCheckpointError(f"entry 'rollout' holds {len(samples.seen)} samples, a rollout has {count}")
    return samples
