"""Gradient accumulation held against the one big batch that it stands for."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from torch import Tensor, nn

from trainwright.steps import gradients, micro_batches
from trainwright.subjects import Subject, clear_gradients, stored, weights_in
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
    weight_difference: float


def measured(subject: Subject) -> Accumulation:
    """Measure from equal weights, in fp32 and evaluation mode: dropout draws otherwise for a batch of another size.

    The batch is the configuration's, or the nearest multiple of 4; its micro-batches hold a quarter of it.
    """
    size = max(1, subject.config.train.batch_size // MICRO_BATCHES)
    big, small = (subject.built(batch_size=n, precision="fp32") for n in (size * MICRO_BATCHES, size))
    small.load_weights(stored(big))
    made = _updates(big, 1), _updates(small, MICRO_BATCHES)
    ours, theirs = (tuple(zip(*updates, strict=True)) for updates in made)
    loss, norm, items = (max(map(_relative, one, other)) for one, other in zip(ours, theirs, strict=True))
    weight = _relative_distance(weights_in(stored(big)), weights_in(stored(small)))
    return Accumulation(size, MICRO_BATCHES, UPDATES, items, loss, norm, weight)


def _updates(trainable: Trainable, count: int) -> Sequence[tuple[float, float, int]]:
    """Take updates of `count` micro-batches each; give loss, gradient norm and items of each."""
    if isinstance(trainable, nn.Module):
        trainable.eval()
    done = []
    for _ in range(UPDATES):
        clear_gradients(trainable)
        loss, items = gradients(trainable, micro_batches(trainable, count))
        done.append((loss.item(), trainable.clip_gradients(None).item(), items))
        trainable.optimizer_step()
    return done


def _relative(one: float, other: float) -> float:
    return 0.0 if one == other else abs(one - other) / abs(one) if one else math.inf


def _relative_distance(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    """Give ‖a − b‖ / ‖a‖ over all tensors of numbers that are not whole."""
    pairs = [(a.double(), theirs[name].double()) for name, a in ours.items() if a.is_floating_point()]
    distance = math.sqrt(sum((a - b).square().sum().item() for a, b in pairs))
    return distance / math.sqrt(sum(a.square().sum().item() for a, _ in pairs)) if distance else 0.0
