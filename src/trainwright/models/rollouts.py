"""What a policy did in its environments, and how well: generalised advantages, and the minibatches of a rollout.

Shapes in names: t steps of a rollout, n environments, b samples (t × n, in that order), f features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, cast, final

import numpy as np
import torch
from torch import Tensor

from trainwright.data.environments import Array, Environments
from trainwright.errors import DamagedCheckpointError
from trainwright.models.rounds import RoundSource
from trainwright.state import State, StateValue, require, require_tensor, with_prefix
from trainwright.trainable import Rounds

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
class RolloutSource(RoundSource):
    """Minibatches of the newest rollout, `epochs` times through it, each time in another order; then one is `due`.

    The order depends on seed, rollout and epoch alone. The state is the rollout, the place in it and the environments'.
    """

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
        self.samples = rollout_steps * len(environments)
        batches = epochs * (self.samples // batch_size)
        super().__init__(environments, acted=self.samples, batches=batches, rounds_per_epoch=rollouts_per_epoch)
        self._batch_size, self._seed, self._ends_early = batch_size, seed, ends_early
        self._rollout: Rollout | None = None
        self._shuffled: tuple[int, Samples] | None = None

    @property
    def micro_batches_per_epoch(self) -> int | None:
        return None if self._ends_early else super().micro_batches_per_epoch

    @property
    def alternation(self) -> Rounds | None:
        return None if self._ends_early else super().alternation

    @property
    def explained_variance(self) -> float | None:
        return None if self._rollout is None else self._rollout.explained_variance

    def take_in(self, rollout: Rollout, returns: Sequence[float]) -> None:
        """Begin on a new rollout, in which episodes of these returns ended."""
        self.begin_round(returns)
        self._rollout, self._shuffled = rollout, None

    def end_rollout(self) -> None:
        """Leave out what is left of the rollout."""
        self._taken = self._batches

    def next_batch(self) -> Samples:
        assert self._rollout is not None
        assert not self.due
        epoch, number = divmod(self._taken, self.samples // self._batch_size)
        self._taken += 1
        if self._shuffled is None or self._shuffled[0] != epoch:
            generator = np.random.default_rng([ORDER, self._seed, self.rounds, epoch])
            order = torch.from_numpy(generator.permutation(self.samples))
            self._shuffled = epoch, Samples(*(part[order] for part in self._rollout.samples))
        begin = number * self._batch_size
        return Samples(*(part[begin : begin + self._batch_size] for part in self._shuffled[1]))

    def save(self) -> dict[str, StateValue]:
        samples = {} if self._rollout is None else self._rollout.samples._asdict()
        variance = {"explained_variance": self.explained_variance}
        return {**super().save(), **variance, **with_prefix("rollout", samples)}

    def load(self, state: State) -> None:
        super().load(state)
        variance = cast("float | None", require(state, "explained_variance"))
        self._rollout = Rollout(_samples_in(state, self.samples), variance) if self.rounds else None
        self._shuffled = None


def _samples_in(state: State, count: int) -> Samples:
    # a copy: what a checkpoint's file is mapped to must not be what is trained on
    samples = Samples(*(require_tensor(state, f"rollout.{name}").clone() for name in Samples._fields))
    if any(len(part) != count for part in samples):
        raise DamagedCheckpointError(f"entry 'rollout' holds {len(samples.seen)} samples, a rollout has {count}")
    return samples
