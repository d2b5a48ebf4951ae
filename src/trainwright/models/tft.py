"""The Temporal Fusion Transformer (Lim et al. 2021) as a forecaster, with what its forecasts are made of.

Shapes in names: b windows, h steps of the horizon, t of context and horizon, m variables, q quantiles.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from torch import Tensor

from trainwright.data.series import Window
from trainwright.errors import about
from trainwright.illustrations import Bars, Grid, Panel
from trainwright.models.forecasters import Forecaster
from trainwright.models.tft_layers import NORM_EPS
from trainwright.models.tft_network import TemporalFusionTransformer
from trainwright.models.tft_options import TFTOptions
from trainwright.torch_trainable import to_device
from trainwright.trainable import Setup


class Explanation(NamedTuple):
    """What forecasts of some windows were made of, on the mean over windows.

    `attention_ht`: how much each step of the horizon looks at each step, a row sums to 1. `shares`: how much of each
    selection (static, past, future) a variable has, by its name, on the mean over steps; a selection sums to 1.
    """

    attention_ht: Tensor
    shares: Mapping[str, Mapping[str, float]]


class TFT(Forecaster):
    """Forecasts quantiles by a `TemporalFusionTransformer`."""

    model_type = "tft"
    options = TFTOptions

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.shape = setup.model.shape()
        with about("data.known"):
            self.network = TemporalFusionTransformer(self.inputs, self.shape, len(self.quantiles))

    @property
    def architecture(self) -> Mapping[str, Any]:
        return {**super().architecture, **asdict(self.shape), "norm_eps": NORM_EPS}

    def predict(self, scaled: Window) -> Tensor:
        quantiles_bhq: Tensor = self.network(scaled).quantiles_bhq
        return quantiles_bhq

    def explain(self, batch: Window) -> Explanation:
        """Tell what the forecasts of some windows are made of; changes no weight, mode or random stream."""
        with self.undisturbed():
            found = self.network(self.window_scaled(to_device(batch, self.device))[0])
        known, observed, static = (
            [v.name for v in part] for part in (self.inputs.known, self.inputs.observed, self.inputs.static)
        )
        shares = {"past": _means((*known, *observed), found.past_bcm), "future": _means(known, found.future_bhm)}
        if found.static_bm is not None:
            shares = {"static": _means(static, found.static_bm), **shares}
        return Explanation(found.attention_bht.float().mean(0).cpu(), shares)

    def illustrate(self) -> Sequence[Panel]:
        """Show, beside a forecast, what the forecasts of a batch of validation windows are made of."""
        starts = self.source.validation_starts()
        evenly = starts[:: -(-len(starts) // self.setup.batch_size)]
        found = self.explain(self.source.windows.batch(evenly))
        seen = f"the mean over {len(evenly)} windows of the validation rows"
        attention = Grid(
            title="Where the forecast looks",
            about=f"attention, {seen}",
            x_unit="steps ahead",
            y_unit="steps ahead",
            unit="share",
            rows=found.attention_ht.tolist(),
            x_first=-self.context,
        )
        return [*super().illustrate(), attention, *(_bars(name, seen, part) for name, part in found.shares.items())]


def _means(names: Sequence[str], shares_lm: Tensor) -> Mapping[str, float]:
    return dict(zip(names, shares_lm.float().flatten(0, -2).mean(0).tolist(), strict=True))


def _bars(selection: str, seen: str, shares: Mapping[str, float]) -> Bars:
    return Bars(
        title=f"Shares of {selection} variables",
        about=seen,
        unit="share",
        labels=list(shares),
        values=list(shares.values()),
    )
