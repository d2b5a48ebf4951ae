"""Trainables that break a promise, each one."""

import os
from collections.abc import Iterator
from itertools import cycle
from typing import Any, cast

import torch
from torch import Tensor

from tests.toys import Samples, Toy
from trainwright.data.windows import TokenBatch
from trainwright.models.lm import LM, LMOptions
from trainwright.trainable import Setup, Source


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


class Options(LMOptions):
    """The section `model:` of a language model that is found by its class."""

    type: str = ""  # type: ignore[assignment]  # the model's own is the word lm


class Honest(LM):
    """The language model as it is: the twin of those below, which break one promise each."""

    options = Options


class StoredRate(Honest):
    """Keeps the rate that it is told and gives it back; the optimizer never hears of it."""

    told = 0.0

    @property
    def learning_rate(self) -> float:
        return self.told

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self.told = value


class OwnRate(Honest):
    """Steps at a rate of its own, and leaves the scheduled one where it would be looked for."""

    def optimizer_step(self, skip: Tensor | None = None) -> None:
        scheduled, self.learning_rate = self.learning_rate, 2e-3
        super().optimizer_step(skip)
        self.learning_rate = scheduled


class ConstantNorm(Honest):
    """Clips, and says the same norm each time."""

    def clip_gradients(self, max_norm: float | None) -> Tensor:
        super().clip_gradients(max_norm)
        return torch.ones(())


class FrozenHead(Honest):
    """Says of one tensor that it is trained, and never moves it."""

    def optimizer_step(self, skip: Tensor | None = None) -> None:
        kept = self.decoder.norm.weight.detach().clone()
        super().optimizer_step(skip)
        with torch.no_grad():
            self.decoder.norm.weight.copy_(kept)


class Wrapped:
    """A source that is asked for batches and gives others; all else is the honest one's."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)


class OneBatch(Honest):
    """Trains on the first batch for ever, while the position moves on."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.source = cast("Any", Stuck(self.source))


class Stuck(Wrapped):
    first: TokenBatch | None = None

    def next_batch(self) -> TokenBatch:
        drawn = self.source.next_batch()
        self.first = self.first or drawn
        return self.first


class Leaking(Honest):
    """Trains on the rows that it will be validated on."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.source = cast("Any", Leak(self.source))


class Leak(Wrapped):
    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.held_out: Iterator[TokenBatch] = cycle(source.validation_batches())

    def next_batch(self) -> TokenBatch:
        self.source.next_batch()
        return next(self.held_out)
