"""A trainable built anew from its configuration as often as it is asked for, and what is done to one from outside.

Gradients are cleared tensor by tensor and states go through the files of a checkpoint, so that what is measured of one
method rests on no other method more than it must.
"""

from typing import Any

import torch
from torch import Tensor

from trainwright.checkpoints import codec
from trainwright.config import RunConfig
from trainwright.models.build import build
from trainwright.state import StateValue
from trainwright.trainable import Trainable


class Candidate:
    """The trainable of a configuration, built anew for each promise, without compilation."""

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        self.config, self.device = config, device

    def built(self, *, seed: int | None = None, device: torch.device | None = None, **train: Any) -> Trainable:
        """Build one; what is given stands in place of the configuration's value."""
        given = {"train.compile": False, **{f"train.{key}": value for key, value in train.items()}}
        given |= {} if seed is None else {"seed": seed}
        changes = [f"{key}={value}" for key, value in given.items()]
        config = RunConfig.from_document(self.config.document_with(changes)).resolved()
        return build(config, device or self.device)

    @property
    def other_seed(self) -> int:
        return self.config.seed + 1


def trained_tensors(trainable: Trainable) -> dict[str, Tensor]:
    """Give the parameters that training moves, by their names."""
    return {name: tensor for name, tensor in trainable.named_parameters() if tensor.requires_grad}


def clear_gradients(trainable: Trainable) -> None:
    """Remove gradients whatever `zero_grad` does."""
    for _, tensor in trainable.named_parameters():
        tensor.grad = None


def backward(trainable: Trainable, batch: Any) -> float:
    """Leave the gradients of this batch alone in the tensors; give its loss, in the unit of the trainable's own."""
    clear_gradients(trainable)
    loss, _ = trainable.compute_loss(trainable.forward(batch), batch)
    trainable.backward(loss)
    return loss.item()


def update(trainable: Trainable, batch: Any = None) -> float:
    """Take one update on the batch, or on the next one; leave no gradient; give the loss before it, as `backward`."""
    loss = backward(trainable, trainable.next_batch() if batch is None else batch)
    trainable.optimizer_step()
    clear_gradients(trainable)
    return loss


def after_updates(candidate: Candidate, count: int = 2, **how: Any) -> Trainable:
    """Build one, as `Candidate.built` with `how`, and take `count` updates on its own batches."""
    trainable = candidate.built(**how)
    for _ in range(count):
        update(trainable)
    return trainable


def stored(trainable: Trainable) -> dict[str, StateValue]:
    """Give the state as it comes back from the files of a checkpoint; nothing in it is shared with the trainable."""
    encoded = codec.encode(trainable.save_checkpoint())
    return codec.decode(encoded.joined(), encoded.segments)
