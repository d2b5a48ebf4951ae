"""Windows over series: their shapes and values, their scale, what each part may see, and their order."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests import series
from trainwright.data import series_arrays, series_scaling
from trainwright.data.series import Variable, Window
from trainwright.data.series_arrays import Arrays
from trainwright.data.series_options import SeriesOptions, Split
from trainwright.data.series_windows import SeriesSource, SeriesWindows
from trainwright.errors import DamagedCheckpointError, DataError, DataExhaustedError, InputError

SIX_HOURS = 6


def arrays(path: Path, **changes: Any) -> Arrays:
    return series_arrays.load(series.options(path, **changes))


def source(
    path: Path, *, batch_size: int = 16, seed: int = 0, limit: int | None = None, **changes: Any
) -> SeriesSource:
    made = arrays(path, **changes)
    scales = series_scaling.fit(made)
    return SeriesSource(made, scales, batch_size=batch_size, seed=seed, validation_batches=limit)


def many_kinds(folder: Path) -> Path:
    """Write two shops with a variable of each kind."""
    rows, steps = 2 * series.ROWS, np.arange(series.ROWS)
    columns = {
        "shop": ["north"] * series.ROWS + ["south"] * series.ROWS,
        "time": [*series.hours(), *series.hours()],
        "load": [*series.wave(), *series.wave(seed=1, level=100.0)],
        "price": [*(steps * 2.0), *(steps * 3.0)],
        "event": np.where(np.arange(rows) % 50 == 0, "fair", "none"),
        "wind": np.random.default_rng(4).normal(size=rows),
        "area": [120.0] * series.ROWS + [80.0] * series.ROWS,
    }
    return series.write(folder / "shops.csv", columns)


KINDS: dict[str, Any] = {
    "id": "shop",
    "known": ["event", "price"],
    "observed": ["wind"],
    "static": ["area", "shop"],
    "categorical": ["event", "shop", "hour_of_day"],
    "calendar": ["day_of_week", "hour_of_day"],
    "time_index": True,
}


# -- shapes and values -----------------------------------------------------------------------------------------------


def test_reals_stand_before_codes_in_each_kind_and_the_target_first(tmp_path: Path) -> None:
    inputs = arrays(many_kinds(tmp_path), **KINDS).inputs
    assert inputs.static == (Variable("area"), Variable("shop", 3))
    assert inputs.known == (
        *map(Variable, ("price", "time_index", "day_of_week")),
        Variable("event", 3),
        Variable("hour_of_day", 25),
    )
    assert inputs.observed == (Variable("load"), Variable("wind"))


def test_a_window_has_the_shapes_and_types_that_are_told(tmp_path: Path) -> None:
    batch = source(many_kinds(tmp_path), **KINDS).next_batch()
    assert {name: (tuple(part.shape), part.dtype) for name, part in batch._asdict().items()} == {
        "static_reals": ((16, 1), torch.float32),
        "static_codes": ((16, 1), torch.int64),
        "known_reals": ((16, 30, 3), torch.float32),
        "known_codes": ((16, 30, 2), torch.int64),
        "observed_reals": ((16, 24, 2), torch.float32),
        "observed_codes": ((16, 24, 0), torch.int64),
        "target": ((16, 6), torch.float32),
        "weight": ((16, 6), torch.float32),
    }


def test_a_window_holds_its_rows_of_the_file_over_the_training_rows_scale(tmp_path: Path) -> None:
    made = arrays(many_kinds(tmp_path), **KINDS)
    windows = SeriesWindows(made, series_scaling.fit(made))
    start = series.ROWS + 40  # of the second series
    batch = windows.batch(np.array([start]))
    load, price = series.wave(seed=1, level=100.0), np.arange(series.ROWS) * 3.0
    for values, found in (
        (load, torch.cat((batch.observed_reals[0, :, 0], batch.target[0]))),
        (price, batch.known_reals[0, :, 0]),
    ):
        expected = (values[40:70] - values[:200].mean()) / values[:200].std()
        assert torch.allclose(found.double(), torch.from_numpy(expected), atol=1e-6)
    assert batch.known_codes[0, :, 1].tolist() == [(40 + step) % 24 + 1 for step in range(30)]
    assert sorted(set(batch.known_reals[0, :, 2].tolist())) == pytest.approx(
        [1 / 6 - 0.5, 2 / 6 - 0.5]
    )  # Tuesday, Wednesday
    assert batch.static_codes.tolist() == [[2]]
    assert batch.static_reals.tolist() == [[-1.0]]


def test_a_category_that_no_training_row_holds_has_the_code_of_the_unseen(tmp_path: Path) -> None:
    event = np.where(np.arange(series.ROWS) < 250, "none", "strike")
    made = arrays(series.one_series(tmp_path, event=event), known=["event"], categorical=["event"])
    assert made.known.variables == (Variable("event", 2),)
    assert made.known.codes[:, 0].tolist() == [1] * 250 + [0] * 70


def test_what_is_missing_is_the_value_before_it_and_a_target_that_is_missing_has_no_weight(tmp_path: Path) -> None:
    values = series.wave()
    values[[0, 1, 30, 31]] = np.nan
    path = series.one_series(tmp_path, load=values)
    made = arrays(path, missing="carry_forward")
    scales = series_scaling.fit(made)
    batch = SeriesWindows(made, scales).batch(np.array([0, 4]))
    assert batch.observed_reals[0, :2, 0].tolist() == [0.0, 0.0], "before the first value stands the mean"
    carried = np.float32((values[29] - scales.mean_sr[0, 0]) / scales.deviation_sr[0, 0])
    assert batch.target[1, 2:4].tolist() == [carried, carried]
    assert batch.weight.tolist() == [[1.0] * 6, [1.0, 1.0, 0.0, 0.0, 1.0, 1.0]]
    assert scales.mean_sr[0, 0] == pytest.approx(np.nanmean(values[:200]), rel=1e-12)


def test_a_window_without_any_target_in_its_horizon_is_left_out(tmp_path: Path) -> None:
    values = series.wave()
    values[100:110] = np.nan
    starts = source(series.one_series(tmp_path, load=values), missing="carry_forward").windows.starts("training")
    assert set(range(171)) - set(starts.tolist()) == {start for start in range(171) if 100 <= start + 24 <= 104}


def test_a_static_value_that_a_series_has_not_is_none_of_another_series(tmp_path: Path) -> None:
    columns = {
        "shop": ["north"] * series.ROWS + ["south"] * series.ROWS,
        "time": [*series.hours(), *series.hours()],
        "load": [*series.wave(), *series.wave()],
        "area": [None] * (series.ROWS + 5) + [80.0] * (series.ROWS - 5),
        "kind": [None] * series.ROWS + ["large"] * series.ROWS,
    }
    path = series.write(tmp_path / "a.csv", columns)
    kinds: dict[str, Any] = {"static": ["area", "kind"], "categorical": ["kind"], "missing": "carry_forward"}
    static = arrays(path, id="shop", **kinds).static
    assert np.isnan(static.reals[0, 0])
    assert (static.reals[1, 0], static.codes.tolist()) == (80.0, [[0], [1]])


# -- scales ----------------------------------------------------------------------------------------------------------


def test_scales_do_not_change_with_what_comes_after_the_training_rows(tmp_path: Path) -> None:
    changed = series.wave()
    changed[200:] += 1000.0
    one, other = (
        series_scaling.fit(arrays(series.one_series(tmp_path / name, load=values)))
        for name, values in (("a", series.wave()), ("b", changed))
    )
    assert series_scaling.shift(one, other) == 0.0
    assert one.mean_sr[0, 0] == pytest.approx(series.wave()[:200].mean(), rel=1e-12)
    assert one.deviation_sr[0, 0] == pytest.approx(series.wave()[:200].std(), rel=1e-12)


def test_what_does_not_vary_is_left_in_its_unit_and_the_calendar_is_never_scaled(tmp_path: Path) -> None:
    path = series.one_series(tmp_path, price=[5.0] * series.ROWS)
    scales = series_scaling.fit(arrays(path, known=["price"], calendar=["hour_of_day"]))
    assert scales.mean_sr[0, 1:].tolist() == [5.0, 0.0]
    assert scales.deviation_sr[0, 1:].tolist() == [1.0, 1.0]


def test_what_does_not_vary_but_by_rounding_is_left_in_its_unit(tmp_path: Path) -> None:
    path = series.one_series(tmp_path, price=[0.1] * 200 + [0.2] * 120)
    made = arrays(path, known=["price"])
    scales = series_scaling.fit(made)
    assert scales.deviation_sr[0, 1] == 1.0
    assert SeriesWindows(made, scales).batch(np.array([190])).known_reals[0, -1].item() == pytest.approx(0.1)


def test_a_shift_of_scales_is_told_in_deviations(tmp_path: Path) -> None:
    scales = series_scaling.fit(arrays(series.one_series(tmp_path)))
    unit = scales.deviation_sr
    assert series_scaling.shift(scales._replace(mean_sr=scales.mean_sr + 0.25 * unit), scales) == pytest.approx(0.25)
    assert series_scaling.shift(scales._replace(deviation_sr=unit * 0.9), scales) == pytest.approx(0.1)


# -- parts -----------------------------------------------------------------------------------------------------------


def test_no_training_window_reaches_beyond_the_training_rows_and_no_horizon_out_of_its_part(tmp_path: Path) -> None:
    windows = source(many_kinds(tmp_path), **KINDS).windows
    ends = {part: set[int]() for part in ("training", "validation", "test")}
    for part, (first, last) in {"training": (0, 200), "validation": (200, 260), "test": (260, 320)}.items():
        starts = windows.starts(part)  # type: ignore[arg-type]  # a part
        within = starts - windows.arrays.table.begins[windows.owners(starts)]
        assert within.min() == (0 if part == "training" else first - 24)
        assert within.max() == last - 30
        assert len(starts) == 2 * (within.max() - within.min() + 1)
        ends[part] = set((starts + 29).tolist())
    assert not ends["training"] & ends["validation"]
    assert not ends["validation"] & ends["test"]


@given(st.integers(3, 400), st.floats(0.05, 0.9), st.floats(0.02, 0.5), st.floats(0.02, 0.5))
def test_parts_by_shares_are_whole_rows_that_never_exceed_the_series(
    rows: int, train: float, validation: float, test: float
) -> None:
    if train + validation + test > 1:
        return
    ends = Split(train=train, validation=validation, test=test).ends(rows)
    assert 0 <= ends[0] <= ends[1] <= ends[2] <= rows


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"split": {"train": 300, "validation": 60, "test": 60}}, DataError, "has 320 rows, data.split asks for 420"),
        ({"context": 195}, DataError, r"has 200 rows to train on, a window takes 201 \(context 195 \+ horizon 6\)"),
        (
            {"split": {"train": 200, "validation": 5, "test": 60}},
            DataError,
            r"gives no validation window of 24 \+ 6 rows",
        ),
        ({"batch_size": 172}, DataError, "gives 171 training windows .*, one batch needs 172"),
    ],
)
def test_too_few_rows_are_refused_with_what_they_are_too_few_for(
    changes: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message) as told:
        source(series.one_series(tmp_path), **changes)
    assert told.value.config_key == "data.split"  # type: ignore[attr-defined]  # an error of ours


def test_a_series_without_a_target_to_train_on_is_refused_by_name(tmp_path: Path) -> None:
    values = series.wave()
    values[:200] = np.nan
    path = series.one_series(tmp_path, load=values)
    with pytest.raises(DataError, match="series 'load' has no value of the target in its training rows"):
        source(path, missing="carry_forward")


def test_whole_numbers_as_times_have_no_calendar(tmp_path: Path) -> None:
    path = series.one_series(tmp_path, time=range(series.ROWS))
    with pytest.raises(InputError, match="whole numbers, which no calendar tells of"):
        source(path, calendar=["month"])


# -- order -----------------------------------------------------------------------------------------------------------


def first_values(made: SeriesSource, batches: int) -> list[bytes]:
    return [row.numpy().tobytes() for _ in range(batches) for row in made.next_batch().observed_reals]


def test_one_pass_gives_each_training_window_once_in_an_order_of_seed_and_pass(tmp_path: Path) -> None:
    path = series.one_series(tmp_path)
    made = source(path)
    assert (made.items_per_epoch, made.micro_batches_per_epoch) == (171, 11)
    one, two = first_values(made, 11), first_values(made, 11)
    assert made.epoch == 2
    assert len(set(one)) == len(one) == 171
    assert set(one) == set(two)
    assert one != two
    assert first_values(source(path), 11) == one
    assert first_values(source(path, seed=1), 11) != one


def test_a_source_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    path = series.one_series(tmp_path)
    made = source(path)
    first_values(made, 14)
    saved = made.save()
    other = source(path)
    other.load(saved)
    assert first_values(other, 20) == first_values(made, 20)


@pytest.mark.parametrize(
    "state", [{"epoch": 0}, {"epoch": -1, "position": 0}, {"epoch": 0, "position": 171}, {"epoch": 0, "position": "1"}]
)
def test_a_position_that_is_none_of_these_data_is_refused(state: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(DamagedCheckpointError, match=r"position|epoch"):
        source(series.one_series(tmp_path)).load(state)


def test_data_that_may_be_seen_once_are_exhausted_after_a_pass(tmp_path: Path) -> None:
    made = source(series.one_series(tmp_path), exhaustion="halt")
    first_values(made, 11)
    with pytest.raises(DataExhaustedError, match="training windows: all 171 were seen once"):
        made.next_batch()


def test_validation_takes_every_window_or_an_even_part_of_them(tmp_path: Path) -> None:
    path = series.one_series(tmp_path)
    whole = source(path).validation_starts()
    assert whole.tolist() == list(range(176, 231))
    assert source(path, validation_stride=6).validation_starts().tolist() == whole[::6].tolist()
    few = source(path, limit=1, batch_size=10).validation_starts()
    assert (len(few), few[0], few[-1]) == (10, 176, 225)


def test_a_drawn_window_is_told_by_how_many_rows_it_reached_beyond_the_training_rows(tmp_path: Path) -> None:
    made = source(many_kinds(tmp_path), id="shop")
    first_values(made, made.micro_batches_per_epoch)
    assert made.rows_beyond_training == 0
    ends = made.windows.arrays.table.begins[:-1] + 200
    assert made.windows.rows_beyond_training(ends - 30) == 0
    assert [made.windows.rows_beyond_training(ends[[own]] - 30 + own + 1) for own in (0, 1)] == [1, 2]


def test_an_audit_is_given_every_validation_window_at_any_stride(tmp_path: Path) -> None:
    made = source(series.one_series(tmp_path), validation_stride=6)
    rows = [row for batch in made.validation_batches() for row in batch.observed_reals[:, 0, 0].tolist()]
    expected: Window = made.windows.batch(np.arange(176, 231))
    assert sorted(rows) == sorted(expected.observed_reals[:, 0, 0].tolist())


def test_a_season_before_repeats_the_last_targets_before_the_horizon(tmp_path: Path) -> None:
    windows = source(series.one_series(tmp_path), horizon=SIX_HOURS).windows
    batch = windows.batch(np.array([50]))
    past = batch.observed_reals[0, :, 0].tolist()
    assert windows.season_before(np.array([50]), 4).tolist() == [[*past[-4:], *past[-4:-2]]]
    assert windows.season_before(np.array([50]), 1).tolist() == [[past[-1]] * SIX_HOURS]


def test_an_option_that_is_misspelt_is_an_error() -> None:
    with pytest.raises(ValueError, match="horizn"):
        SeriesOptions.model_validate({"path": "a.csv", "target": "x", "horizn": 4})
