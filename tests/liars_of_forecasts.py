"""Forecasters that break one promise each; the honest one is NLinear."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from trainwright.data import series_scaling
from trainwright.data.passes import Passes
from trainwright.data.series import Window
from trainwright.data.series_scaling import Scales
from trainwright.models.forecasters import Forecaster, ForecasterOptions
from trainwright.models.linear_forecasters import NLinear
from trainwright.trainable import Setup


class Honest(NLinear):
    """NLinear as it is, found by its class."""

    options = ForecasterOptions


class ScaledByAll(Honest):
    """Takes its scales from all rows, those to be forecast among them."""

    def fit_scales(self) -> Scales:
        return scales_of_all(self)


class ScaledInSecret(Honest):
    """Puts its windows on scales of all rows, and shows those of the training rows in its weights."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.source.windows.rescale(scales_of_all(self))


def scales_of_all(forecaster: Forecaster) -> Scales:
    whole = forecaster.arrays.table.begins[1:, None].repeat(3, 1)
    return series_scaling.fit(replace(forecaster.arrays, ends_sp=whole))


class LeakingSplit(Honest):
    """Trains on the windows of its validation rows, too."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        train_on(self, np.concatenate((self.source._training, self.source._held_out)))


class LeakingTest(Honest):
    """Trains on the windows of its test rows, too."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        train_on(self, np.concatenate((self.source._training, self.source.windows.starts("test"))))


class LeakingEdge(Honest):
    """Trains on windows whose horizon begins in its training rows and ends beyond them."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        train_on(self, np.arange(self.source._training[-1] + self.horizon))


def train_on(forecaster: Forecaster, starts: Any) -> None:
    setup, source = forecaster.setup, forecaster.source
    source._training = starts
    source._passes = Passes(len(starts), batch_size=setup.batch_size, seed=setup.seed, exhaustion="cycle", of="windows")


class NoBand(Honest):
    """Gives its median for every quantile."""

    def predict(self, scaled: Window) -> Tensor:
        predicted = super().predict(scaled)
        return predicted[..., 1:2].expand_as(predicted)


class FarQuantiles(ForecasterOptions):
    quantiles: list[float] = Field([0.01, 0.5, 0.99])


class WideBand(Honest):
    """Gives a band of 7 deviations to both sides."""

    def predict(self, scaled: Window) -> Tensor:
        median = super().predict(scaled)[..., 1:2]
        return torch.cat((median - 7, median, median + 7), -1)


class Askew(Honest):
    """Gives its highest quantile for its median, too, once it is trained."""

    def predict(self, scaled: Window) -> Tensor:
        predicted = super().predict(scaled)
        return predicted if self.training else predicted[..., [0, 2, 2]]


class WidestBand(WideBand):
    """Does so for quantiles between which nearly all should lie."""

    options = FarQuantiles


class CloseQuantiles(ForecasterOptions):
    quantiles: list[float] = Field([0.1, 0.45, 0.5, 0.55, 0.9])


class Crossed(Honest):
    """Gives the quantile below its median for the one above, and this for that."""

    options = CloseQuantiles

    def predict(self, scaled: Window) -> Tensor:
        return super().predict(scaled)[..., CROSSED]

    def compute_loss(self, predictions: Tensor, batch: Window) -> tuple[Tensor, int]:
        return super().compute_loss(predictions[..., CROSSED], batch)


CROSSED = [0, 3, 2, 1, 4]


class Poisoned(Honest):
    """Its forecasts are no numbers from update 9 on, while it trains."""

    def predict(self, scaled: Window) -> Tensor:
        predicted = super().predict(scaled)
        return predicted * math.nan if self.training and self.step >= 9 else predicted
