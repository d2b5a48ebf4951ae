"""NLinear and DLinear (Zeng et al. 2023) fitted in closed form, as baselines beside a trained forecaster.

Shapes in names: n windows, c steps of context, f features, h steps of horizon.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from trainwright.data.series import Window
from trainwright.data.series_times import Ticks
from trainwright.data.series_windows import SeriesWindows
from trainwright.models.linear_forecasters import MOVING_AVERAGE, smoothed
from trainwright.models.point_forecasts import AT_ONCE, errors_of

RIDGES: Final = tuple(10.0**power for power in range(-6, 3))  # of the features' mean variance


def _changes(past_nc: Tensor) -> Tensor:
    return past_nc - past_nc[:, -1:]


def _trend_and_remainder(past_nc: Tensor) -> Tensor:
    trend_nc = smoothed(past_nc, MOVING_AVERAGE)
    return torch.cat((trend_nc, past_nc - trend_nc), 1)


FEATURES: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {"nlinear": _changes, "dlinear": _trend_and_remainder}


@dataclass(frozen=True, slots=True)
class Linear:
    """A fitted linear forecast. `ridge` is the penalty that the validation windows chose."""

    name: str
    ridge: float
    weights_fh: Tensor
    constant_h: Tensor

    def __call__(self, batch: Window, _starts: Ticks) -> Tensor:
        """Give forecasts (b, h)."""
        past = batch.observed_reals[..., 0].double()
        return (FEATURES[self.name](past) @ self.weights_fh + self.constant_h + _base(self.name, past)).float()


def fit(name: str, windows: SeriesWindows, training: Ticks, validation: Ticks) -> Linear | None:
    """Fit by least squares to the training windows, with the ridge of the least absolute error on those of validation.

    None where no training window has its whole target, and where the targets of all are one number.
    """
    moments = moments_of(name, windows, training)
    if moments is None or moments.squares_ff.trace() <= 0:
        return None
    fitted = list(solved(name, moments))
    return min(fitted, key=lambda one: errors_of(one, windows, validation).absolute.mean().item())


@dataclass(frozen=True, slots=True)
class Moments:
    mean_f: Tensor
    mean_h: Tensor
    squares_ff: Tensor
    products_fh: Tensor


def moments_of(name: str, windows: SeriesWindows, starts: Ticks) -> Moments | None:
    """Give the means, and the covariances of features with each other and with targets, in float64."""
    count, sums = 0, list[Tensor]()
    for batch in windows.batches(starts, AT_ONCE):
        past, whole = batch.observed_reals[..., 0].double(), batch.weight.bool().all(1)
        x, y = FEATURES[name](past)[whole], (batch.target.double() - _base(name, past))[whole]
        own = [x.sum(0), y.sum(0), x.T @ x, x.T @ y]
        count, sums = count + len(x), [a + b for a, b in zip(sums, own, strict=True)] if sums else own
    if not count:
        return None
    mean_f, mean_h, squares, products = (part / count for part in sums)
    return Moments(mean_f, mean_h, squares - torch.outer(mean_f, mean_f), products - torch.outer(mean_f, mean_h))


def _base(name: str, past_nc: Tensor) -> Tensor:
    """Give what a forecast is a change from, (n, 1)."""
    return past_nc[:, -1:] if name == "nlinear" else torch.zeros_like(past_nc[:, -1:])


def solved(name: str, moments: Moments) -> Iterator[Linear]:
    """Give the fit of each ridge. The constant bears no penalty."""
    values_f, vectors_ff = torch.linalg.eigh(moments.squares_ff)
    turned_fh = vectors_ff.T @ moments.products_fh
    for ridge in RIDGES:
        damped_f = values_f.clamp(min=0) + ridge * values_f.mean()
        weights_fh = vectors_ff @ (turned_fh / damped_f[:, None])
        yield Linear(name, ridge, weights_fh, moments.mean_h - moments.mean_f @ weights_fh)
