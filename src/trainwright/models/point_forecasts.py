"""Simple forecasts for a trained forecaster to be held against: the last value, the last season, a band around it.

Shapes in names: b windows of a batch, n of all, h steps of horizon.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from trainwright.data.series import Window
from trainwright.data.series_times import Ticks
from trainwright.data.series_windows import SeriesWindows
from trainwright.models.forecast_scores import over_horizon, scores

PointForecast: TypeAlias = Callable[[Window, Ticks], Tensor]  # windows and where they begin → (b, h)
AT_ONCE: Final = 2_048  # windows
MOST: Final = 16_384  # windows that quantiles are taken from


def naive(windows: SeriesWindows, season: int) -> Mapping[str, PointForecast]:
    """Give the forecasts that need no fit, by name: the last value, and the last season over and over."""
    return {
        "naive": lambda _, starts: windows.season_before(starts, 1),
        "seasonal_naive": lambda _, starts: windows.season_before(starts, season),
    }


class Errors(NamedTuple):
    """Mean absolute and squared error of each window, (n,), in float64."""

    absolute: Tensor
    squared: Tensor


def errors_of(forecast: PointForecast, windows: SeriesWindows, starts: Ticks) -> Errors:
    """Give the errors of a forecast over the windows that begin at `starts`."""
    found = []
    for begin in range(0, len(starts), AT_ONCE):
        some = starts[begin : begin + AT_ONCE]
        batch = windows.batch(some)
        errors_bh = batch.target - forecast(batch, some)
        found.append(Errors(*(over_horizon(part, batch.weight) for part in (errors_bh.abs(), errors_bh.square()))))
    return Errors(*(torch.cat(parts).double() for parts in zip(*found, strict=True)))


def seasonal_quantile_loss(windows: SeriesWindows, season: int, starts: Ticks, quantiles: Sequence[float]) -> float:
    """Give the quantile loss over the windows at `starts` of a band around the last season.

    Its quantiles are those of the errors at each step of the horizon over the training windows that have a season
    before them, or over 16,384 of these, evenly chosen, where they are more.
    """
    offsets_hq = _seasonal_errors(windows, season, quantiles)
    losses = []
    for begin in range(0, len(starts), AT_ONCE):
        some = starts[begin : begin + AT_ONCE]
        batch, predicted_bh = windows.batch(some), windows.season_before(some, season)
        losses.append(scores(predicted_bh[..., None] + offsets_hq, batch.target, batch.weight, quantiles).quantile)
    return torch.cat(losses).double().mean().item()


def _seasonal_errors(windows: SeriesWindows, season: int, quantiles: Sequence[float]) -> Tensor:
    """Give quantiles of the errors of repeating the last season, (h, q)."""
    starts = windows.starts("training")
    starts = starts[windows.rows_before(starts) + windows.context >= season]
    starts = starts[:: -(-len(starts) // MOST)]
    errors = []
    for begin in range(0, len(starts), AT_ONCE):
        some = starts[begin : begin + AT_ONCE]
        batch = windows.batch(some)
        missed_bh = batch.target - windows.season_before(some, season)
        errors.append(missed_bh.masked_fill(batch.weight <= 0, torch.nan))
    return torch.from_numpy(np.nanquantile(torch.cat(errors).numpy(), quantiles, axis=0).T).float()
