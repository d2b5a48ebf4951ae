"""Trainables that break one promise each. `LIARS` names the promise; a test holds that no other one is broken by it."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tests.toys import Samples, Toy, ToySource
from trainwright.illustrations import Panel
from trainwright.state import State, StateValue
from trainwright.trainable import Setup, Validation


class StepsByTwo(Toy):
    def optimizer_step(self, skip: Tensor | None = None) -> None:
        super().optimizer_step(skip)
        self.step += 1


class KeepsGradients(Toy):
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Leave every gradient as it is."""


class FirstGroupOnly(Toy):
    @property
    def learning_rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self.optimizer.param_groups[0]["lr"] = value


class Unreached(Toy):
    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.never_used = nn.Linear(2, 2)


class NormOfOne(Toy):
    """Clips over all parameters, and tells the norm of one."""

    def clip_gradients(self, max_norm: float | None) -> Tensor:
        last = self._trained[-1].grad
        assert last is not None
        norm: Tensor = torch.linalg.vector_norm(last)
        super().clip_gradients(max_norm)
        return norm


class ClipsTooLittle(Toy):
    """Tells the norm, and clips to twice what it is asked for."""

    def clip_gradients(self, max_norm: float | None) -> Tensor:
        return super().clip_gradients(None if max_norm is None else 1.01 * max_norm)


class OnlyCounts(Toy):
    def optimizer_step(self, skip: Tensor | None = None) -> None:
        self.step += 1


class Unmasked(Toy):
    def optimizer_step(self, skip: Tensor | None = None) -> None:
        super().optimizer_step()


class AddsAtLoad(Toy):
    """Keeps a number that no update reads, and changes it at each load."""

    loads = 0

    def save_checkpoint(self) -> State:
        return {**super().save_checkpoint(), "loads": self.loads}

    def load_checkpoint(self, state: State) -> None:
        super().load_checkpoint(state)
        self.loads += 1


class Forgetful(Toy):
    """Its loss depends on a number that no checkpoint holds."""

    taken = 0

    def optimizer_step(self, skip: Tensor | None = None) -> None:
        super().optimizer_step(skip)
        self.taken += 1

    def compute_loss(self, predictions: Tensor, batch: Samples) -> tuple[Tensor, int]:
        loss, items = super().compute_loss(predictions, batch)
        return loss * (1 + 0.01 * self.taken), items


class Placeless(Toy):
    """Begins its data anew after a load."""

    class _Source(ToySource):
        def save(self) -> dict[str, StateValue]:
            return {}

        def load(self, state: State) -> None:
            """Stay at the beginning."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.source = self._Source(setup, self.toy)


class StaysInEvaluation(Toy):
    def validate(self) -> Validation:
        found = super().validate()
        self.eval()
        return found


class DrawsInValidation(Toy):
    def validate(self) -> Validation:
        torch.rand(1)
        return super().validate()


class NoisyValidation(Toy):
    def validate(self) -> Validation:
        found = super().validate()
        return replace(found, value=found.value + int.from_bytes(os.urandom(4)) * 1e-9)


class Misnamed(Toy):
    def validate(self) -> Validation:
        return replace(super().validate(), metric="accuracy")


class DrawsToIllustrate(Toy):
    """Draws random numbers, and stays as it is used."""

    def illustrate(self) -> Sequence[Panel]:
        self.eval()
        torch.rand(1)
        return ()


class ShowsNoPanel(Toy):
    def illustrate(self) -> Any:
        return [{"title": "no panel"}]


class UsedByASet(Toy):
    @property
    def interface(self) -> Mapping[str, Any]:
        return {"actions": {0, 1}}


class Undeclared(Toy):
    def collect_metrics(self) -> Mapping[str, float]:
        return {"surprise": 1.0}


class Raises(Toy):
    def collect_metrics(self) -> Mapping[str, float]:
        raise ValueError("no metrics today")


class NoisyWeights(Toy):
    """Adds noise that no seed decides to the weights it begins with."""

    @classmethod
    def build(cls, setup: Setup) -> Any:
        built = super().build(setup)
        with torch.no_grad():
            next(built.parameters()).add_(int.from_bytes(os.urandom(4)) * 1e-12)
        return built


class SeedOfNought(Toy):
    """Takes the seed 0 whatever it is told."""

    @classmethod
    def build(cls, setup: Setup) -> Any:
        return super().build(replace(setup, seed=0))


class Elsewhere(Toy):
    @classmethod
    def build(cls, setup: Setup) -> Any:
        built = super().build(setup)
        built.register_buffer("scratch", torch.zeros(1, device="meta"), persistent=False)
        return built


class Redraws(Toy):
    """Goes on from another place of the random stream after a load."""

    def load_checkpoint(self, state: State) -> None:
        super().load_checkpoint(state)
        torch.rand(1)


class StepsBack(Toy):
    """Sees one sample less after a load."""

    class _Source(ToySource):
        def load(self, state: State) -> None:
            super().load(state)
            self._position = max(0, self._position - 1)

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.source = self._Source(setup, self.toy)


class Drifts(Toy):
    """Its noise, which no seed decides, is larger than what rounding does."""

    def compute_loss(self, predictions: Tensor, batch: Samples) -> tuple[Tensor, int]:
        loss, items = super().compute_loss(predictions, batch)
        return loss * (1 + int.from_bytes(os.urandom(1)) * 1e-2), items


class Summed(Toy):
    """Gives the sum of the losses for their mean."""

    def compute_loss(self, predictions: Tensor, batch: Samples) -> tuple[Tensor, int]:
        loss, items = super().compute_loss(predictions, batch)
        return loss * items, items


LIARS: Sequence[tuple[type[Toy], str]] = (
    (StepsByTwo, "step"),
    (KeepsGradients, "zero_grad"),
    (FirstGroupOnly, "learning_rate"),
    (Unreached, "gradients"),
    (NormOfOne, "clip_gradients"),
    (ClipsTooLittle, "clip_gradients"),
    (OnlyCounts, "optimizer_step"),
    (Unmasked, "masked_step"),
    (AddsAtLoad, "save_load_save"),
    (Forgetful, "load_checkpoint"),
    (Placeless, "data_position"),
    (StaysInEvaluation, "validate_leaves"),
    (DrawsInValidation, "validate_leaves"),
    (NoisyValidation, "validate_repeats"),
    (Misnamed, "validation_metric"),
    (DrawsToIllustrate, "illustrate"),
    (ShowsNoPanel, "illustrate"),
    (UsedByASet, "interface"),
    (Undeclared, "collect_metrics"),
    (Raises, "collect_metrics"),
    (NoisyWeights, "equal_seeds"),
    (SeedOfNought, "other_seeds"),
    (Elsewhere, "device"),
    (Summed, "accumulation"),
)
