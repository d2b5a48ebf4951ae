"""Trainables that break a promise, each one."""

import os
from typing import Any

import torch
from torch import Tensor

from tests.toys import Samples, Toy
from trainwright.trainable import Setup


class Unseeded(Toy):
    """Adds noise that no seed decides."""

    def compute_loss(self, predictions: Tensor, batch: Samples) -> tuple[Tensor, int]:
        loss, items = super().compute_loss(predictions, batch)
        return loss * (1 + int.from_bytes(os.urandom(1)) * 1e-6), items


class Seedless(Toy):
    """Takes the same seed whatever it is told."""

    @classmethod
    def build(cls, setup: Setup) -> Any:
        from dataclasses import replace

        built = super().build(replace(setup, seed=0))
        torch.manual_seed(0)
        return built
