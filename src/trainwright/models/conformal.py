"""Bands that are widened or narrowed so that they held, on rows that were not trained on, the share that they promise.

Shapes in names: n windows, h steps of horizon.
"""

import math
from typing import Final, NamedTuple

import torch
from torch import Tensor

LEAST_WINDOWS: Final = 100
ROUNDING: Final = 1e-9  # of a share times a count, which may lie just above a whole number


class Bands(NamedTuple):
    """The outermost band of some forecasts and what came, (n, h) each; `weight` is 0 where nothing was observed."""

    low: Tensor
    high: Tensor
    target: Tensor
    weight: Tensor

    def moved(self, offsets_h: Tensor) -> "Bands":
        """Give the bands wider by `offsets_h` on both sides, narrower where it is negative, at most to their middle."""
        middle = (self.low + self.high) / 2
        return self._replace(
            low=torch.minimum(self.low - offsets_h, middle), high=torch.maximum(self.high + offsets_h, middle)
        )

    def part(self, windows: slice | Tensor) -> "Bands":
        return Bands(*(values[windows] for values in self))

    @property
    def coverage(self) -> float:
        """Give the share of observed targets within their band."""
        inside = (self.target >= self.low) & (self.target <= self.high)
        return ((inside * self.weight).sum() / self.weight.sum()).item()

    @property
    def width(self) -> float:
        return (self.high - self.low).mean().item()


def offsets(bands: Bands, share: float) -> Tensor | None:
    """Give by how much each step of the horizon needs the band moved to hold `share` of what comes, (h,).

    Conformalized quantile regression (Romano, Patterson and Candès 2019, equations 6 to 8), a step of the horizon by
    itself. It holds for windows that come as those it is taken from came, which series do only as far as they do not
    change. None where these are too few: a step needs share / (1 - share) of them; and for no share at all.
    """
    scores_nh = torch.maximum(bands.low - bands.target, bands.target - bands.high)
    counts_h = (bands.weight > 0).sum(0)
    ranks_h = torch.ceil((counts_h + 1) * share - ROUNDING).long()
    if (ranks_h > counts_h).any() or (ranks_h < 1).any():
        return None
    ordered_nh = scores_nh.masked_fill(bands.weight <= 0, math.inf).sort(0).values
    return ordered_nh.gather(0, ranks_h[None] - 1)[0]


def split_coverage(bands: Bands, early_n: Tensor, late_n: Tensor, share: float) -> float | None:
    """Give the coverage of the late bands, moved by what the early ones needed (split conformal prediction).

    None where either has fewer than `LEAST_WINDOWS`, or a step of the horizon too few targets that were observed.
    """
    if min(early_n.sum(), late_n.sum()) < LEAST_WINDOWS:
        return None
    offsets_h, late = offsets(bands.part(early_n), share), bands.part(late_n)
    return None if offsets_h is None else late.moved(offsets_h).coverage
