"""A forecaster on its test rows, beside forecasts that need no training, and its band before and after calibration.

Shapes in names: h steps of horizon.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from trainwright.data.series_times import Ticks
from trainwright.errors import DataError, about
from trainwright.models import least_squares
from trainwright.models.conformal import Bands, offsets
from trainwright.models.forecasters import Forecaster
from trainwright.models.point_forecasts import PointForecast, errors_of, naive


@dataclass(frozen=True, slots=True)
class Forecasted:
    """How good one forecast is, in deviations of each series; what a forecast of single values has not is None."""

    mae: float
    standard_error: float | None  # of the mae
    mse: float
    quantile_loss: float | None = None
    crossings: float | None = None
    ridge: float | None = None  # of a baseline that was fitted


@dataclass(frozen=True, slots=True)
class Held:
    """The share of targets that lie in their band, and its mean width in deviations."""

    coverage: float
    width: float


@dataclass(frozen=True, slots=True)
class Band:
    """The outermost band over the test windows, which should hold the share `nominal`.

    As it was forecast, and moved by the validation windows (conformal prediction), which is how to use it; None where
    these were too few, and of a single quantile, whose band has no width.
    """

    nominal: float
    as_forecast: Held
    by_validation: Held | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Forecasts of the same windows by name, the model's first, and the model's band."""

    windows: int
    forecasts: Mapping[str, Forecasted]
    band: Band


def compared(forecaster: Forecaster) -> Comparison:
    """Forecast every window of the test rows. Nothing of these rows is fitted to, calibrated by or chosen by.

    Errors: DataError when the test rows give no window.
    """
    starts = forecaster.source.windows.starts("test")
    if not len(starts):
        with about("data.split"):
            raise DataError("the test rows give no window; give that part more rows, at least a horizon")
    found, bands = forecaster.scored(starts)
    model = Forecasted(
        mae=found.absolute.mean().item(),
        standard_error=forecaster.standard_error(found.absolute, starts),
        mse=found.squared.mean().item(),
        quantile_loss=found.quantile.mean().item(),
        crossings=found.crossed.mean().item(),
    )
    others = {name: _point(forecaster, one, starts) for name, one in _baselines(forecaster).items()}
    return Comparison(len(starts), {"model": model, **others}, _band(forecaster, bands))


def _baselines(forecaster: Forecaster) -> Mapping[str, PointForecast]:
    """Give the baselines by name; a fit that no training window allows is left out."""
    source = forecaster.source
    training, validation = source.windows.starts("training"), source.validation_starts()
    fits = {name: least_squares.fit(name, source.windows, training, validation) for name in least_squares.FEATURES}
    fitted: dict[str, PointForecast] = {name: one for name, one in fits.items() if one is not None}
    return {**naive(source.windows, forecaster.arrays.season), **fitted}


def _point(forecaster: Forecaster, forecast: PointForecast, starts: Ticks) -> Forecasted:
    errors = errors_of(forecast, forecaster.source.windows, starts)
    return Forecasted(
        mae=errors.absolute.mean().item(),
        standard_error=forecaster.standard_error(errors.absolute, starts),
        mse=errors.squared.mean().item(),
        ridge=forecast.ridge if isinstance(forecast, least_squares.Linear) else None,
    )


def _band(forecaster: Forecaster, bands: Bands) -> Band:
    share = forecaster.nominal_coverage
    offsets_h = offsets(forecaster.scored(forecaster.source.validation_starts())[1], share)
    return Band(
        nominal=share,
        as_forecast=_held(bands),
        by_validation=None if offsets_h is None else _held(bands.moved(offsets_h)),
    )


def _held(bands: Bands) -> Held:
    return Held(bands.coverage, bands.width)
