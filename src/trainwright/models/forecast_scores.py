"""How good forecasts are: quantile losses, errors of the median, coverage of the band, quantiles that cross.

Shapes in names: b windows, h steps of horizon, q quantiles. A target that is missing, by its weight, counts nowhere.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

MEDIAN = 0.5


def quantile_losses(predicted_bhq: Tensor, target_bh: Tensor, quantiles_q: Tensor) -> Tensor:
    """Give the quantile loss of each forecast (Koenker and Bassett 1978), not doubled: (b, h, q)."""
    errors_bhq = target_bh[..., None] - predicted_bhq
    return torch.maximum(quantiles_q * errors_bhq, (quantiles_q - 1) * errors_bhq)


def over_horizon(values_bh: Tensor, weight_bh: Tensor) -> Tensor:
    """Give the mean of each window over the steps whose target was observed, (b,)."""
    # a target that is missing has a value of no meaning, which may be any but must not count
    return (values_bh * weight_bh).sum(1) / weight_bh.sum(1)


class Scores(NamedTuple):
    """Means over the observed steps of each window, (b,): of the median's errors, the loss, and the outermost band.

    `crossed` is over all steps: the share at which a quantile lies above a higher one.
    """

    absolute: Tensor
    squared: Tensor
    quantile: Tensor
    covered: Tensor
    crossed: Tensor


def scores(predicted_bhq: Tensor, target_bh: Tensor, weight_bh: Tensor, quantiles: Sequence[float]) -> Scores:
    """Score forecasts of these ascending quantiles, the median among them."""
    predicted_bhq = predicted_bhq.float()
    quantiles_q = torch.tensor(quantiles, dtype=torch.float32, device=target_bh.device)
    errors_bh = target_bh - predicted_bhq[..., list(quantiles).index(MEDIAN)]
    inside_bh = (target_bh >= predicted_bhq[..., 0]) & (target_bh <= predicted_bhq[..., -1])
    losses_bh = quantile_losses(predicted_bhq, target_bh, quantiles_q).mean(-1)
    return Scores(
        absolute=over_horizon(errors_bh.abs(), weight_bh),
        squared=over_horizon(errors_bh.square(), weight_bh),
        quantile=over_horizon(losses_bh, weight_bh),
        covered=over_horizon(inside_bh.float(), weight_bh),
        crossed=(predicted_bhq.diff(dim=-1) < 0).any(-1).float().mean(1),
    )
