"""NLinear and DLinear: as trained models by their definition, and as baselines by least squares."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests import series
from tests.acceptance.test_examples import DATA
from tests.models.test_forecasters import forecaster
from trainwright import yamlfile
from trainwright.config import RunConfig
from trainwright.data.series_options import SeriesOptions
from trainwright.data.series_windows import SeriesWindows
from trainwright.errors import InputError
from trainwright.models import least_squares, table
from trainwright.models.build import check as options_of
from trainwright.models.forecast_evaluation import compared
from trainwright.models.linear_forecasters import DLinear, NLinear, smoothed
from trainwright.models.starting import starting_file

ETTH1 = DATA / "ETTh1.csv"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return series.one_series(tmp_path)


def test_a_moving_average_repeats_the_ends_beyond_them() -> None:
    past = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 7)))
    padded = np.pad(past.numpy(), ((0, 0), (2, 2)), mode="edge")
    expected = np.stack([padded[:, at : at + 5].mean(1) for at in range(7)], 1)
    assert np.allclose(smoothed(past, 5).numpy(), expected, rtol=1e-12)


def test_nlinear_is_one_layer_over_the_changes_from_the_last_value(path: Path) -> None:
    made = forecaster(path)
    assert isinstance(made, NLinear)
    batch = made.next_batch()
    past = batch.observed_reals[..., 0].double().numpy()
    weight, bias = (part.detach().double().numpy() for part in (made.layer.weight, made.layer.bias))
    expected = ((past - past[:, -1:]) @ weight.T + bias).reshape(16, 6, 3) + past[:, -1:, None]
    assert np.allclose(made.predict(batch).detach().numpy(), expected, atol=1e-5)
    assert made.parameter_count == (24 + 1) * 6 * 3


def test_dlinear_adds_a_layer_over_the_trend_and_one_over_what_is_left(path: Path) -> None:
    made = forecaster(path, model={"type": "dlinear", "moving_average": 5})
    assert isinstance(made, DLinear)
    batch = made.next_batch()
    past = batch.observed_reals[..., 0]
    trend = smoothed(past, 5)
    with torch.no_grad():
        expected = (made.trend(trend) + made.remainder(past - trend)).reshape(16, 6, 3)
        assert torch.equal(made.predict(batch), expected)
    assert made.parameter_count == 2 * (24 + 1) * 6 * 3
    with pytest.raises(InputError, match="moving_average is 4; expected an odd number"):
        forecaster(path, model={"type": "dlinear", "moving_average": 4})


# -- least squares ---------------------------------------------------------------------------------------------------


def windows_of(path: Path, **changes: Any) -> tuple[SeriesWindows, Any, Any]:
    made = forecaster(path, **changes)
    return made.source.windows, made.source.windows.starts("training"), made.source.validation_starts()


def fitted(name: str, path: Path, **changes: Any) -> least_squares.Linear:
    found = least_squares.fit(name, *windows_of(path, **changes))
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["nlinear", "dlinear"])
def test_the_fit_is_ridge_regression_over_the_training_windows(name: str, path: Path) -> None:
    windows, training, _ = windows_of(path)
    found = fitted(name, path)
    batch = windows.batch(training)
    past, target = batch.observed_reals[..., 0].double(), batch.target.double()
    x = least_squares.FEATURES[name](past).numpy()
    y = (target - (past[:, -1:] if name == "nlinear" else 0)).numpy()
    x_centred, y_centred = x - x.mean(0), y - y.mean(0)
    penalty = found.ridge * np.trace(x_centred.T @ x_centred) / x.shape[1]
    expected = np.linalg.solve(x_centred.T @ x_centred + penalty * np.eye(x.shape[1]), x_centred.T @ y_centred)
    assert np.allclose(found.weights_fh.numpy(), expected, atol=1e-8)
    assert np.allclose(found.constant_h.numpy(), y.mean(0) - x.mean(0) @ expected, atol=1e-8)


def test_the_ridge_is_that_of_the_least_error_on_the_validation_windows(path: Path) -> None:
    windows, _, validation = windows_of(path)
    batch = windows.batch(validation)
    moments = least_squares.moments_of("nlinear", *windows_of(path)[:2])
    assert moments is not None
    errors = {
        one.ridge: (one(batch, validation) - batch.target).abs().mean().item()
        for one in least_squares.solved("nlinear", moments)
    }
    assert len(errors) == len(least_squares.RIDGES)
    assert fitted("nlinear", path).ridge == min(errors, key=errors.__getitem__)


def test_a_fit_forecasts_a_wave_that_it_can_know_wholly(tmp_path: Path) -> None:
    wave = 5 + np.sin(2 * np.pi * np.arange(series.ROWS) / 24)
    clean = series.one_series(tmp_path, load=wave)
    windows, _, validation = windows_of(clean)
    batch = windows.batch(validation)
    for name in least_squares.FEATURES:
        assert (fitted(name, clean)(batch, validation) - batch.target).abs().max() < 1e-3


def test_windows_whose_target_is_not_whole_are_not_fitted_to(tmp_path: Path) -> None:
    load = series.wave()
    load[::7] = np.nan
    holes = series.one_series(tmp_path, load=load)
    assert least_squares.fit("nlinear", *windows_of(holes, data={"missing": "carry_forward", "horizon": 7})) is None
    assert fitted("nlinear", holes, data={"missing": "carry_forward", "horizon": 6}).ridge in least_squares.RIDGES
    assert "nlinear" not in compared(forecaster(holes, data={"missing": "carry_forward", "horizon": 7})).forecasts


def test_a_target_that_never_varies_in_training_is_not_fitted_to(tmp_path: Path) -> None:
    load = np.where(np.arange(series.ROWS) < 200, 0.1, series.wave())
    still = series.one_series(tmp_path, load=load)
    assert least_squares.fit("nlinear", *windows_of(still)) is None
    found = compared(forecaster(still)).forecasts
    assert all(np.isfinite(one.mae) for one in found.values())


@pytest.mark.skipif(not ETTH1.exists(), reason=f"{ETTH1} is not there")
def test_the_baselines_of_etth1_are_those_of_the_paper() -> None:
    split = {"train": 8640, "validation": 2880, "test": 2880}
    data = {"time": "date", "target": "OT", "context": 336, "horizon": 96, "split": split}
    found = compared(forecaster(ETTH1, data=data, train__batch_size=512))
    assert found.windows == 2785
    published = {"nlinear": (0.177, 0.053), "dlinear": (0.180, 0.056)}  # Zeng et al. 2023, table 3: MAE and MSE
    for name, (mae, mse) in published.items():
        assert found.forecasts[name].mae == pytest.approx(mae, abs=0.0015)
        assert found.forecasts[name].mse == pytest.approx(mse, abs=0.0025)
    assert found.forecasts["nlinear"].mae < found.forecasts["naive"].mae < found.forecasts["seasonal_naive"].mae


@pytest.mark.parametrize("name", ["nlinear", "dlinear"])
def test_the_starting_file_shows_every_option_and_begins_under_its_contract(name: str) -> None:
    told = yamlfile.parse(starting_file(name), f"{name}.yaml").data
    own = table.find(name).options
    assert own is not None
    assert told["model"].keys() == own.model_fields.keys()
    assert told["data"].keys() == SeriesOptions.model_fields.keys()
    config = RunConfig.parse(told)
    assert config.contract == "training-loop-forecast-v1"
    _, model, data = options_of(config)
    assert (model.type, data.horizon) == (name, 24)
