"""What forecasters share: their series, windows on a scale of their own, the quantile loss, validation and baselines.

Shapes in names: b windows, c steps of context, h of horizon, q quantiles.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Final

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor

from trainwright.data import series_arrays, series_scaling
from trainwright.data.series import Window
from trainwright.data.series_options import SERIES, SeriesOptions
from trainwright.data.series_scaling import Scales
from trainwright.data.series_times import Ticks
from trainwright.data.series_windows import SeriesSource, block_of
from trainwright.errors import InputError, about
from trainwright.files import sha256_of_bytes
from trainwright.illustrations import Panel
from trainwright.models.conformal import Bands, split_coverage
from trainwright.models.forecast_panels import forecast_panel
from trainwright.models.forecast_scales import ScaleBuffers
from trainwright.models.forecast_scores import MEDIAN, Scores, over_horizon, quantile_losses, scores
from trainwright.models.point_forecasts import errors_of, naive, seasonal_quantile_loss
from trainwright.state import State
from trainwright.torch_trainable import TorchTrainable, to_device
from trainwright.trainable import DataSize, Metric, Setup, Validation, summarize

STANDARD_EPS: Final = 1e-5  # added to a variance
LEAST_ROWS: Final = 1_000  # of a half of the validation rows, and
LEAST_HORIZONS: Final = 10
MEASURES: Final = (
    Metric("quantile_loss", "deviations", "min"),
    Metric("mse", "deviations²", "min"),
    Metric("coverage", "share"),
    Metric("nominal_coverage", "share"),
    Metric("calibrated_coverage", "share"),
    Metric("crossings", "share", "min"),
    Metric("scaler_shift", "deviations", "min"),
    Metric("rows_beyond_training", "rows", "min"),
)


class ForecasterOptions(BaseModel):
    """The part of the section `model:` that every forecaster has."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    type: str = ""  # a subclass has its own
    quantiles: Annotated[list[Annotated[float, Field(gt=0, lt=1)]], Field(min_length=1)] = [0.1, 0.5, 0.9]
    sort_quantiles: bool = False  # put those that cross in order (Chernozhukov, Fernández-Val and Galichon 2010)

    @field_validator("quantiles")
    @classmethod
    def _rise_around_the_median(cls, quantiles: list[float]) -> list[float]:
        if MEDIAN not in quantiles or sorted(set(quantiles)) != quantiles:
            raise ValueError(f"quantiles are {quantiles}; expected rising ones with {MEDIAN} among them")
        return quantiles


class Forecaster(TorchTrainable):
    """The base of forecasters; the loss counts windows. A subclass makes its network and writes `predict`.

    `validate` gives the mean absolute error of the median over the validation windows, on the trained scale: in units
    of each series' own deviation over its training rows.
    """

    options = ForecasterOptions
    data_options = SeriesOptions
    source: SeriesSource
    _quantiles_q: Tensor

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.series: SeriesOptions = setup.data
        self.quantiles: tuple[float, ...] = tuple(setup.model.quantiles)
        self.arrays = series_arrays.load(self.series)
        self.inputs = self.arrays.inputs
        self.context, self.horizon = self.series.context, self.series.horizon
        scales = self.fit_scales()
        self.scaler = ScaleBuffers(scales)
        self.source = SeriesSource(
            self.arrays,
            scales,
            batch_size=setup.batch_size,
            seed=setup.seed,
            validation_batches=setup.validation_batches,
        )
        self.register_buffer("_quantiles_q", torch.tensor(self.quantiles), persistent=False)
        self._check_season()

    def _check_season(self) -> None:
        season, shortest = self.arrays.season, min(rows.stop - rows.start for rows in self.arrays.spans("training"))
        if season + self.horizon > shortest:
            with about("data.season"):
                raise InputError(
                    f"a season of {season} steps and the horizon of {self.horizon} after it; a series has {shortest} "
                    "rows to train on; give a shorter season, as season: 1"
                )

    def fit_scales(self) -> Scales:
        """Give the scales of the training rows."""
        return series_scaling.fit(self.arrays)

    def predict(self, scaled: Window) -> Tensor:
        """Give quantiles (b, h, q), on the scale of the windows that it is given. A subclass writes this."""
        raise NotImplementedError

    @property
    def architecture(self) -> Mapping[str, Any]:
        kinds = {kind: [[v.name, v.categories] for v in getattr(self.inputs, kind)] for kind in self.inputs.__slots__}
        own = {"context": self.context, "horizon": self.horizon, "quantiles": list(self.quantiles)}
        treated = {"window_scaling": self.series.window_scaling, "sort_quantiles": self.setup.model.sort_quantiles}
        return {"type": self.model_type, **own, "inputs": kinds, "codes": self._codes, **treated}

    @property
    def _codes(self) -> Mapping[str, str]:
        """Give a hash of the texts that each code stands for: weights of other ones would take them for each other."""
        texts = dict(self.arrays.categories)
        if self.series.static_series:
            texts[SERIES] = self.arrays.table.ids
        return {name: sha256_of_bytes(json.dumps(list(own)).encode())[:16] for name, own in texts.items()}

    @property
    def data_size(self) -> DataSize:
        return DataSize(held_bytes=self.source.windows.size_bytes)

    @property
    def interface(self) -> Mapping[str, Any]:
        """Give series, columns and codes of categories; `scaler.*` of the weights scale `scaled`, a row a series."""
        data, frequency = self.series, self.arrays.table.frequency
        scaled = [v.name for v in (*self.inputs.observed, *self.inputs.known) if v.categories is None]
        return {
            "target": data.targets,
            "series": list(self.arrays.table.ids),
            "frequency": None if frequency is None else str(frequency),
            "calendar": list(data.calendar),
            "categories": {name: list(texts) for name, texts in self.arrays.categories.items()},
            "scaled": scaled,
        }

    # -- learning ----------------------------------------------------------------------------------------------------

    def forward(self, batch: Window) -> Tensor:
        """Give quantiles (b, h, q) on the trained scale."""
        scaled, shift_b, factor_b = self.window_scaled(batch)
        predicted_bhq = self.predict(scaled)
        if self.setup.model.sort_quantiles:
            predicted_bhq = predicted_bhq.sort(-1).values
        if self.series.window_scaling == "none":
            return predicted_bhq
        return predicted_bhq * factor_b[:, None, None] + shift_b[:, None, None]

    def window_scaled(self, batch: Window) -> tuple[Window, Tensor, Tensor]:
        """Give the windows with their targets less a shift and over a factor, and these, (b,) each."""
        past_bc = batch.observed_reals[..., 0]
        shift_b, factor_b = torch.zeros_like(past_bc[:, 0]), torch.ones_like(past_bc[:, 0])
        if self.series.window_scaling == "none":
            return batch, shift_b, factor_b
        if self.series.window_scaling == "last":
            shift_b = past_bc[:, -1]
        else:
            shift_b = past_bc.mean(1)
            factor_b = (past_bc.var(1, correction=0) + STANDARD_EPS).sqrt()
        shifted = (past_bc - shift_b[:, None]) / factor_b[:, None]
        observed = torch.cat((shifted[..., None], batch.observed_reals[..., 1:]), -1)
        target = (batch.target - shift_b[:, None]) / factor_b[:, None]
        return batch._replace(observed_reals=observed, target=target), shift_b, factor_b

    def compute_loss(self, predictions: Tensor, batch: Window) -> tuple[Tensor, int]:
        """Give the quantile loss: the mean over quantiles, observed steps and windows, in that order."""
        losses_bh = quantile_losses(predictions.float(), batch.target, self._quantiles_q).mean(-1)
        return over_horizon(losses_bh, batch.weight).mean(), len(batch.target)

    def load_weights(self, state: State) -> None:
        """Copy the weights in. The scales stay those of this run's own training rows: the weights may be of others."""
        super().load_weights(self.scaler.instead_of_those_in(state))

    def load_checkpoint(self, state: State) -> None:
        super().load_checkpoint(state)
        self.load_scales(state)

    def load_scales(self, state: State) -> None:
        """Put the series on the scales of a checkpoint of the same data. Errors: as `ScaleBuffers.load`."""
        self.source.windows.rescale(self.scaler.load(state))
        self.__dict__.pop("baselines", None)  # those were on other scales

    # -- validation --------------------------------------------------------------------------------------------------

    @property
    def validation_metric(self) -> Metric:
        return Metric("mae", "deviations", "min")

    @property
    def validation_measures(self) -> Sequence[Metric]:
        return MEASURES

    def validate(self) -> Validation:
        """Score the validation windows.

        `scaler_shift` is how far the scales in use are from those of the training rows, and `rows_beyond_training` how
        far windows that were drawn reached beyond these.

        `calibrated_coverage` is that of the second half of the validation rows, the band moved by the first; None where
        a half has fewer than 1,000 rows, 10 horizons or 100 windows, for errors within a horizon are much alike and so
        fewer tell little; None of a single quantile, too, whose band is no wider than itself.

        Windows overlap and so do not tell of each other's errors by chance; the standard error is over blocks of them,
        each of horizons that begin within three horizons' length.
        """
        return self.summary(self.source.validation_starts())

    def summary(self, starts: Ticks) -> Validation:
        """Score the windows that begin at `starts`."""
        found, bands = self.scored(starts)
        means = {name: getattr(found, place).mean().item() for name, place in MEASURED.items()}
        return Validation(
            metric=self.validation_metric.name,
            value=found.absolute.mean().item(),
            n=len(starts),
            standard_error=self.standard_error(found.absolute, starts),
            measures={
                **means,
                "nominal_coverage": self.nominal_coverage,
                "calibrated_coverage": self.calibrated_coverage(bands, starts),
                "scaler_shift": series_scaling.shift(self.source.windows.scales, series_scaling.fit(self.arrays)),
                "rows_beyond_training": float(self.source.rows_beyond_training),
            },
        )

    @property
    def nominal_coverage(self) -> float:
        """Give the share of targets that should lie between the outermost quantiles."""
        return self.quantiles[-1] - self.quantiles[0]

    def standard_error(self, values_n: Tensor, starts: Ticks) -> float | None:
        """Give that of the mean over blocks of windows; None for a single block."""
        blocks = block_of(self.source.windows, starts)
        counts, sums = np.bincount(blocks), np.bincount(blocks, values_n.numpy())
        return summarize(
            "", [(total / count, int(count)) for total, count in zip(sums, counts, strict=True)]
        ).standard_error

    def scored(self, starts: Ticks) -> tuple[Scores, Bands]:
        """Give the scores of each window and its outermost band, in float64 on the host."""
        found, bands = [], []
        for batch, predicted_bhq in self.forecasts(starts):
            found.append(scores(predicted_bhq, batch.target, batch.weight, self.quantiles))
            bands.append(Bands(predicted_bhq[..., 0], predicted_bhq[..., -1], batch.target, batch.weight))
        return Scores(*_on_host(found)), Bands(*_on_host(bands))

    def calibrated_coverage(self, bands: Bands, starts: Ticks) -> float | None:
        """Give the coverage in the second half of the validation rows of bands that were moved by the first."""
        rows = sum(rows.stop - rows.start for rows in self.arrays.spans("validation"))
        if rows < 2 * max(LEAST_ROWS, LEAST_HORIZONS * self.horizon):
            return None
        return split_coverage(bands, *self.source.windows.halves(starts), self.nominal_coverage)

    def forecasts(self, starts: Ticks) -> Iterator[tuple[Window, Tensor]]:
        """Give windows by the batch and their forecasts (b, h, q); changes no weight, mode or random stream."""
        for window in self.source.windows.batches(starts, self.setup.batch_size):
            batch: Window = to_device(window, self.device)
            with self.undisturbed():
                predicted: Tensor = self.forward(batch)
            yield batch, predicted.float()

    def illustrate(self) -> Sequence[Panel]:
        """Show the forecast of the window in the middle of the validation rows, with its band."""
        starts = self.source.validation_starts()
        middle = starts[len(starts) // 2 :][:1]
        batch, predicted_bhq = next(self.forecasts(middle))
        windows = self.source.windows
        name, observed_c = self.arrays.table.ids[windows.owners(middle)[0]], windows.observed_before(middle)[0]
        return [forecast_panel(batch, observed_c, predicted_bhq[0], self.quantiles, title=f"Forecast of {name}")]

    @cached_property
    def baselines(self) -> Mapping[str, float]:
        """Give errors of naive forecasts of the validation windows, on the scale in use, and the steps of a season."""
        windows, season = self.source.windows, self.arrays.season
        starts, forecasts = self.source.validation_starts(), naive(windows, season)
        errors = {
            f"{name}_mae": errors_of(one, windows, starts).absolute.mean().item() for name, one in forecasts.items()
        }
        loss = seasonal_quantile_loss(windows, season, starts, self.quantiles)
        return {**errors, "seasonal_naive_quantile_loss": loss, "season": float(season)}


MEASURED: Final = {"quantile_loss": "quantile", "mse": "squared", "coverage": "covered", "crossings": "crossed"}


def _on_host(parts: Sequence[tuple[Tensor, ...]]) -> Iterator[Tensor]:
    """Join what was found of each batch."""
    yield from (torch.cat(values).double().cpu() for values in zip(*parts, strict=True))
