"""Gradient accumulation held against the one big batch that it stands for."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from torch import Tensor, nn

from trainwright.candidates import Candidate, clear_gradients, stored, trained_tensors
from trainwright.equality import relative_distance
from trainwright.steps import gradients, micro_batches
from trainwright.trainable import Trainable

UPDATES: Final = 3
MICRO_BATCHES: Final = 4


@dataclass(frozen=True, slots=True)
class Accumulation:
    """How far `micro_batches` batches accumulated are from one big batch, after `updates`: relative, in fp32."""

    batch_size: int
    micro_batches: int
    updates: int
    items_difference: float
    loss_difference: float
    norm_difference: float
    gradient_difference: float


def measured(candidate: Candidate) -> Accumulation:
    """Measure from equal weights, in fp32 and evaluation mode: dropout draws otherwise for a batch of another size.

    The batch is the configuration's, or the nearest multiple of 4; its micro-batches hold a quarter of it.
    """
    size = max(1, candidate.config.train.batch_size // MICRO_BATCHES)
    big, small = (candidate.built(batch_size=n, precision="fp32") for n in (size * MICRO_BATCHES, size))
    small.load_weights(stored(big))
    pairs = list(zip(_updates(big, 1), _updates(small, MICRO_BATCHES), strict=True))
    return Accumulation(
        batch_size=size,
        micro_batches=MICRO_BATCHES,
        updates=len(pairs),
        items_difference=max(_relative(one.items, other.items) for one, other in pairs),
        loss_difference=max(_relative(one.loss, other.loss) for one, other in pairs),
        norm_difference=max(_relative(one.norm, other.norm) for one, other in pairs),
        gradient_difference=max(relative_distance(one.gradient, other.gradient) for one, other in pairs),
    )


@dataclass(frozen=True, slots=True)
class _Update:
    loss: float
    norm: float
    items: int
    gradient: Mapping[str, Tensor]


def _updates(trainable: Trainable, count: int) -> Sequence[_Update]:
    """Take updates of `count` micro-batches each.

    Gradients are compared, not the weights that they move: AdamW makes of a gradient that is nothing but rounding, as
    of a key's bias in attention, a step of the full rate.
    """
    if isinstance(trainable, nn.Module):
        trainable.eval()
    done = []
    for _ in range(UPDATES):
        clear_gradients(trainable)
        loss, items = gradients(trainable, micro_batches(trainable, count))
        grads = {name: t.grad.clone() for name, t in trained_tensors(trainable).items() if t.grad is not None}
        done.append(_Update(loss.item(), trainable.clip_gradients(None).item(), items, grads))
        trainable.optimizer_step()
    return done


def _relative(one: float, other: float) -> float:
    return 0.0 if one == other else abs(one - other) / abs(one) if one else math.inf
