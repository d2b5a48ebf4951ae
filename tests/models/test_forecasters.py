"""What forecasters share: the loss against its definition, scales of windows, validation, baselines, what is saved."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests import series
from tests.acceptance import harness
from trainwright.candidates import Candidate
from trainwright.config import RunConfig
from trainwright.data import series_scaling
from trainwright.data.series import Window
from trainwright.errors import DataError, InputError
from trainwright.illustrations import Lines
from trainwright.models.build import build
from trainwright.models.build import check as options_of
from trainwright.models.conformal import Bands, offsets, split_coverage
from trainwright.models.forecast_evaluation import compared
from trainwright.models.forecast_scores import over_horizon, quantile_losses, scores
from trainwright.models.forecasters import Forecaster, ForecasterOptions
from trainwright.models.linear_forecasters import NLinear
from trainwright.promises import check

CPU = torch.device("cpu")
QUANTILES = (0.1, 0.5, 0.9)


def values(path: Path, *, data: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Give the configuration of a small forecaster of the series in a file."""
    return harness.config(
        **{
            "name": "forecaster",
            "model": {"type": "nlinear"},
            "data": series.section(path, **(data or {})),
            "train__batch_size": 16,
            "train__learning_rate": 1e-3,
            "optimizer__weight_decay": 0.0,
            **changes,
        }
    )


def forecaster(path: Path, **changes: Any) -> Forecaster:
    built = build(RunConfig.parse(values(path, **changes)).resolved(), CPU)
    assert isinstance(built, Forecaster)
    return built


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return series.one_series(tmp_path)


# -- the loss --------------------------------------------------------------------------------------------------------


def by_hand(predicted: Sequence[float], target: float) -> float:
    parts = [(target - p) * (q if target >= p else q - 1) for p, q in zip(predicted, QUANTILES, strict=True)]
    return math.fsum(parts) / len(parts)


def test_the_loss_is_the_quantile_loss_of_each_observed_step(path: Path) -> None:
    made = forecaster(path)
    batch = made.next_batch()
    batch = batch._replace(
        weight=torch.bernoulli(torch.full_like(batch.weight, 0.6)).index_fill(1, torch.tensor([0]), 1.0)
    )
    predicted = made.forward(batch)
    loss, windows = made.compute_loss(predicted, batch)
    each = [
        math.fsum(by_hand(p, y) * w for p, y, w in zip(*row, strict=True)) / math.fsum(row[2])
        for row in zip(predicted.tolist(), batch.target.tolist(), batch.weight.tolist(), strict=True)
    ]
    assert windows == 16
    assert loss.item() == pytest.approx(math.fsum(each) / 16, rel=1e-6)


def test_a_quantile_loss_is_least_at_the_quantile() -> None:
    target_n = torch.arange(101.0)
    quantiles_q = torch.tensor(QUANTILES)
    losses = [
        quantile_losses(torch.full((101, 1, 3), at), target_n[:, None], quantiles_q).mean((0, 1)).tolist()
        for at in range(101)
    ]
    assert [int(np.argmin(column)) for column in zip(*losses, strict=True)] == [10, 50, 90]


def test_a_target_that_is_missing_counts_in_no_score() -> None:
    target = torch.tensor([[1.0, 1e9], [2.0, 3.0]])
    weight = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    predicted = torch.zeros(2, 2, 3) + torch.tensor([-1.0, 0.5, 2.5])
    found = scores(predicted, target, weight, QUANTILES)
    assert found.absolute.tolist() == [0.5, 2.0]
    assert found.squared.tolist() == [0.25, 4.25]
    assert found.covered.tolist() == [1.0, 0.5]
    assert over_horizon(target, weight).tolist() == [1.0, 2.5]


def test_quantiles_cross_where_one_lies_above_a_higher_one() -> None:
    predicted = torch.tensor([[[0.0, 1.0, 2.0], [0.0, 0.0, 0.0], [0.1, 0.0, 2.0], [0.0, 2.0, 1.0]]])
    zeros = torch.zeros(1, 4)
    assert scores(predicted, zeros, zeros + 1, QUANTILES).crossed.tolist() == [0.5]


def test_quantiles_are_sorted_where_it_is_asked_for(path: Path) -> None:
    plain, ordered = (forecaster(path, model__sort_quantiles=sort) for sort in (False, True))
    batch = plain.next_batch()
    assert ordered.forward(batch).tolist() == plain.forward(batch).sort(-1).values.tolist()
    assert plain.validate().measures["crossings"] != 0.0
    assert ordered.validate().measures["crossings"] == 0.0


# -- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__quantiles": [0.1, 0.9]}, r"expected rising ones with 0\.5 among them"),
        ({"model__quantiles": [0.9, 0.5, 0.1]}, "expected rising ones"),
        ({"model__quantiles": [0.5, 1.0]}, "quantiles"),
        (
            {"data": {"season": 195}},
            r"data\.season: a season of 195 steps and the horizon of 6 .* a series has 200 rows",
        ),
        ({"data": {"target": "laod"}}, r"data\.target: .* has no column 'laod'; did you mean 'load'\?"),
        ({"data": {"horizn": 3}}, r"unknown key 'data\.horizn'; did you mean 'horizon'\?"),
        ({"data": {"context": 500}}, r"data\.split: .* has 200 rows to train on, a window takes 506"),
    ],
)
def test_options_that_do_not_fit_are_refused_by_their_key(changes: dict[str, Any], message: str, path: Path) -> None:
    with pytest.raises((InputError, DataError), match=message):
        forecaster(path, **changes)


# -- scales ----------------------------------------------------------------------------------------------------------


class Remembers(NLinear):
    """Keeps the window that it was given."""

    options = ForecasterOptions

    def predict(self, scaled: Window) -> Tensor:
        self.given = scaled
        return super().predict(scaled)


@pytest.mark.parametrize("scaling", ["last", "standard"])
def test_a_window_is_scaled_for_the_network_and_its_forecast_scaled_back(scaling: str, path: Path) -> None:
    made = forecaster(path, data={"window_scaling": scaling}, model={"type": "tests.models.test_forecasters:Remembers"})
    assert isinstance(made, Remembers)
    batch = made.next_batch()
    predicted = made.forward(batch)
    past = batch.observed_reals[..., 0]
    shift = past[:, -1:] if scaling == "last" else past.mean(1, keepdim=True)
    factor = torch.ones_like(shift) if scaling == "last" else (past.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
    assert torch.allclose(made.given.observed_reals[..., 0], (past - shift) / factor, atol=1e-6)
    assert torch.allclose(made.given.target, (batch.target - shift) / factor, atol=1e-6)
    own = NLinear.predict(made, made.given)
    assert torch.allclose(predicted, own * factor[..., None] + shift[..., None], atol=1e-6)


def test_scales_are_in_the_weights_and_a_load_puts_the_series_on_them(path: Path) -> None:
    made, other = forecaster(path), forecaster(path)
    with torch.no_grad():
        made.scaler.get_buffer("mean_sr").add_(1.5)
    state = made.save_checkpoint()
    assert {name for name in state if name.startswith("model.scaler.")} == {
        f"model.scaler.{name}" for name in series_scaling.Scales._fields
    }
    before = other.source.windows.batch(np.array([0])).observed_reals
    other.load_checkpoint(state)
    after = other.source.windows.batch(np.array([0])).observed_reals
    unit = other.source.windows.scales.deviation_sr[0, 0]
    assert torch.allclose(before - after, torch.tensor(1.5 / unit, dtype=torch.float32), atol=1e-5)
    assert other.validate().measures["scaler_shift"] == pytest.approx(1.5 / unit)


def test_weights_of_another_run_come_without_its_scales(path: Path, tmp_path: Path) -> None:
    made = forecaster(path)
    own, baselines = made.source.windows.scales, made.baselines
    before = made.source.windows.batch(np.array([0]))
    other = forecaster(series.one_series(tmp_path / "other", load=3 * series.wave() + 5))
    made.load_weights(other.save_checkpoint())
    assert isinstance(made, NLinear)
    assert isinstance(other, NLinear)
    assert torch.equal(made.layer.weight, other.layer.weight)
    assert made.scaler.get_buffer("mean_sr").tolist() == own.mean_sr.tolist()
    assert torch.equal(made.source.windows.batch(np.array([0])).target, before.target)
    assert made.baselines == baselines
    made.load_scales(other.save_checkpoint())
    assert made.baselines["naive_mae"] == pytest.approx(baselines["naive_mae"] / 3)


def test_scales_of_other_columns_are_refused(path: Path, tmp_path: Path) -> None:
    other = forecaster(series.one_series(tmp_path / "other", heat=series.wave()), data={"observed": ["heat"]})
    with pytest.raises(InputError, match=r"scales \(mean_sr\) are of other series or columns"):
        forecaster(path).load_scales(other.save_checkpoint())


def test_another_text_of_a_category_is_another_architecture(tmp_path: Path) -> None:
    kinds: dict[str, Any] = {"known": ["event"], "categorical": ["event"], "static_series": True}
    one, same, other = (
        forecaster(series.one_series(tmp_path / name, event=[text] * series.ROWS), data=kinds).architecture
        for name, text in (("a", "fair"), ("b", "fair"), ("c", "none"))
    )
    assert one == same
    assert one["codes"].keys() == {"event", "series"}
    assert [key for key in one if one[key] != other[key]] == ["codes"]


# -- validation ------------------------------------------------------------------------------------------------------


def test_validation_gives_the_error_of_the_median_over_the_validation_windows_and_its_measures(path: Path) -> None:
    made = forecaster(path)
    found = made.validate()
    batch = made.source.windows.batch(made.source.validation_starts())
    with torch.no_grad():
        predicted = made.forward(batch)
    assert (found.metric, found.n) == ("mae", 55)
    assert found.value == pytest.approx((predicted[..., 1] - batch.target).abs().mean().item(), rel=1e-6)
    inside = (predicted[..., 0] <= batch.target) & (batch.target <= predicted[..., 2])
    assert found.measures == {
        "quantile_loss": pytest.approx(made.compute_loss(predicted, batch)[0].item(), rel=1e-6),
        "mse": pytest.approx((predicted[..., 1] - batch.target).square().mean().item(), rel=1e-6),
        "coverage": pytest.approx(inside.float().mean().item(), rel=1e-6),
        "nominal_coverage": pytest.approx(0.8),
        "calibrated_coverage": None,
        "crossings": pytest.approx((predicted.diff(dim=-1) < 0).any(-1).float().mean().item(), rel=1e-6),
        "scaler_shift": 0.0,
        "rows_beyond_training": 0.0,
    }
    assert {measure.name for measure in made.validation_measures} == found.measures.keys()


def test_the_standard_error_is_over_blocks_of_windows_of_three_horizons_each(path: Path) -> None:
    made = forecaster(path)
    starts = made.source.validation_starts()
    absolute = made.scored(starts)[0].absolute.numpy()
    blocks = [absolute[starts // 18 == block] for block in np.unique(starts // 18)]
    shares = np.array([len(block) / len(starts) for block in blocks])
    means = np.array([block.mean() for block in blocks])
    variance = ((shares * (means - absolute.mean())) ** 2).sum() * len(blocks) / (len(blocks) - 1)
    assert made.validate().standard_error == pytest.approx(math.sqrt(variance))


def test_baselines_repeat_the_last_value_and_the_last_season(path: Path) -> None:
    made = forecaster(path)
    load = series.wave()
    scaled = (load - load[:200].mean()) / load[:200].std()
    firsts = np.arange(200, 255)
    ahead = np.arange(6)
    naive = np.abs(scaled[firsts[:, None] + ahead] - scaled[firsts - 1][:, None]).mean()
    seasonal = np.abs(scaled[firsts[:, None] + ahead] - scaled[firsts[:, None] + ahead - 24]).mean()
    firsts = np.arange(24, 195)
    errors = scaled[firsts[:, None] + ahead] - scaled[firsts[:, None] + ahead - 24]
    offsets_qh = np.quantile(errors, QUANTILES, axis=0)
    firsts = np.arange(200, 255)
    target = scaled[firsts[:, None] + ahead]
    missed = target - scaled[firsts[:, None] + ahead - 24] - offsets_qh[:, None]
    losses = [np.maximum(q * part, (q - 1) * part).mean() for q, part in zip(QUANTILES, missed, strict=True)]
    assert made.baselines == {
        "naive_mae": pytest.approx(naive, rel=1e-5),
        "seasonal_naive_mae": pytest.approx(seasonal, rel=1e-5),
        "seasonal_naive_quantile_loss": pytest.approx(np.mean(losses), rel=1e-5),
        "season": 24.0,
    }
    assert seasonal < naive


def test_an_illustration_shows_a_validation_window_with_its_forecast_and_band(path: Path) -> None:
    [panel] = forecaster(path).illustrate()
    assert isinstance(panel, Lines)
    assert [(line.label, len(line.y)) for line in panel.lines] == [("target", 30), ("median", 6)]
    assert [band.label for band in panel.bands] == ["0.1 to 0.9"]


def test_an_illustration_has_a_gap_where_the_target_was_missing_in_the_context(tmp_path: Path) -> None:
    load = series.wave()
    load[220:223] = np.nan
    made = forecaster(series.one_series(tmp_path, load=load), data={"missing": "carry_forward"})
    [panel] = made.illustrate()
    assert isinstance(panel, Lines)
    starts = made.source.validation_starts()
    start = starts[len(starts) // 2]
    assert [place for place, value in enumerate(panel.lines[0].y, start) if value is None] == [220, 221, 222]


def test_missing_targets_do_not_unbalance_accumulated_batches(tmp_path: Path) -> None:
    load = series.wave()
    load[np.random.default_rng(0).random(series.ROWS) < 0.3] = np.nan
    gappy = series.one_series(tmp_path, load=load)
    config = RunConfig.parse(values(gappy, data={"missing": "carry_forward"}, train__accumulate=4)).resolved()
    found = check(Candidate(config, CPU)).accumulation
    assert found is not None
    assert max(found.loss_difference, found.gradient_difference, found.items_difference) <= 1e-5


# -- calibration -----------------------------------------------------------------------------------------------------


def bands(windows: int, *, noise: float, seed: int) -> Bands:
    target = torch.from_numpy(np.random.default_rng(seed).normal(size=(windows, 3)) * noise)
    return Bands(torch.full_like(target, -0.5), torch.full_like(target, 0.5), target, torch.ones_like(target))


@pytest.mark.parametrize("noise", [0.1, 0.5, 2.0])
def test_a_calibrated_band_holds_its_share_of_what_comes_alike(noise: float) -> None:
    known, coming = bands(4_000, noise=noise, seed=0), bands(4_000, noise=noise, seed=1)
    moved = offsets(known, 0.8)
    assert moved is not None
    assert coming.moved(moved).coverage == pytest.approx(0.8, abs=0.02)


def test_an_offset_is_the_score_of_the_rank_that_the_paper_gives() -> None:
    target = torch.tensor([[float(value)] for value in range(1, 10)])
    known = Bands(torch.zeros(9, 1), torch.zeros(9, 1), target, torch.ones(9, 1))
    assert offsets(known, 0.8) == torch.tensor([8.0])  # of 9 scores the ⌈10 × 0.8⌉-th
    assert offsets(known._replace(weight=(target < 5).float()), 0.8) == torch.tensor([4.0])
    few = Bands(*(part[:3] for part in known))
    assert offsets(few, 0.8) is None


def test_the_second_half_is_held_against_a_band_that_the_first_half_moved() -> None:
    known, coming = bands(150, noise=2.0, seed=0), bands(150, noise=0.5, seed=1)
    whole = Bands(*(torch.cat(pair) for pair in zip(known, coming, strict=True)))
    early, late = torch.arange(300) < 150, torch.arange(300) >= 150
    moved = offsets(known, 0.8)
    assert moved is not None
    assert split_coverage(whole, early, late, 0.8) == coming.moved(moved).coverage > 0.95
    few = torch.arange(300) < 99
    assert (split_coverage(whole, few, late, 0.8), split_coverage(whole, late, few, 0.8)) == (None, None)


LONG = 3_000
LONG_DATA: dict[str, Any] = {"split": {"train": 600, "validation": 2_000, "test": 60}}


def long_series(folder: Path) -> Path:
    return series.one_series(folder, time=series.hours(LONG), load=series.wave(LONG))


def test_a_long_validation_tells_the_coverage_of_its_second_half_moved_by_its_first(tmp_path: Path) -> None:
    made = forecaster(long_series(tmp_path), data=LONG_DATA)
    starts = made.source.validation_starts()
    _, whole = made.scored(starts)
    first, second = (starts + 24 + 6 <= 1_600), (starts + 24 >= 1_600)
    assert (first.sum(), second.sum(), len(starts)) == (995, 995, 1_995), "horizons across the middle are left out"
    moved = offsets(whole.part(torch.from_numpy(first)), 0.8)
    assert moved is not None
    found = made.validate().measures
    assert found["calibrated_coverage"] == whole.part(torch.from_numpy(second)).moved(moved).coverage
    assert found["calibrated_coverage"] == pytest.approx(0.8, abs=0.05)
    assert found["coverage"] != pytest.approx(0.8, abs=0.15)


@pytest.mark.parametrize(
    "changes",
    [
        {"data": {**LONG_DATA, "split": {"train": 600, "validation": 1_999, "test": 60}}},
        {"data": {**LONG_DATA, "validation_stride": 11}},
        {"data": {**LONG_DATA, "horizon": 101, "season": 1}},
        {"data": LONG_DATA, "model__quantiles": [0.5]},
    ],
    ids=["rows", "windows", "horizons", "no band"],
)
def test_too_short_a_validation_tells_no_calibrated_coverage(changes: dict[str, Any], tmp_path: Path) -> None:
    assert forecaster(long_series(tmp_path), **changes).validate().measures["calibrated_coverage"] is None


def test_a_single_quantile_has_no_band(path: Path) -> None:
    made = forecaster(path, model__quantiles=[0.5])
    found = made.validate().measures
    assert (found["coverage"], found["nominal_coverage"]) == (0.0, 0.0)
    band = compared(made).band
    assert (band.as_forecast.coverage, band.as_forecast.width, band.by_validation) == (0.0, 0.0, None)


def test_the_options_of_the_section_data_are_those_of_every_forecaster(path: Path) -> None:
    _, model, data = options_of(RunConfig.parse(values(path)))
    assert (model.quantiles, data.context, data.horizon) == ([0.1, 0.5, 0.9], 24, 6)
