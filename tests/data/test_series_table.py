"""Series from a file: columns by name, order by time, gaps, what is missing, and what is refused by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from pydantic import ValidationError

from tests import series
from trainwright.data import series_table
from trainwright.data.series_options import SeriesOptions
from trainwright.data.series_table import Table
from trainwright.data.series_times import Frequency
from trainwright.errors import DataError, InputError
from trainwright.files import sha256_of_file


def load(path: Path, **changes: Any) -> Table:
    return series_table.load(series.options(path, **changes))


def without(values: Any, *rows: int) -> Any:
    """Give values less those of some rows."""
    return np.delete(np.asarray(values), rows)


def test_a_csv_and_the_parquet_of_it_hold_the_same_series(tmp_path: Path) -> None:
    path = series.one_series(tmp_path)
    times = pa.array(np.array(series.hours(), "datetime64[us]"))
    pyarrow.parquet.write_table(pa.table({"time": times, "load": series.wave()}), tmp_path / "load.parquet")
    one, other = load(path), load(tmp_path / "load.parquet")
    assert one.numbers["load"].tolist() == other.numbers["load"].tolist() == series.wave().tolist()
    assert one.times is not None
    assert one.times.tolist() == other.times.tolist()  # type: ignore[union-attr]  # both have times
    assert (one.sha256, one.frequency) == (sha256_of_file(path), Frequency.parse("1h"))


def test_rows_may_stand_in_any_order(tmp_path: Path) -> None:
    order = np.random.default_rng(3).permutation(series.ROWS)
    shuffled = {"time": np.array(series.hours())[order], "load": series.wave()[order]}
    table = load(series.write(tmp_path / "a.csv", shuffled))
    assert table.numbers["load"].tolist() == series.wave().tolist()


def test_an_id_tells_series_apart_each_in_the_order_of_its_times(tmp_path: Path) -> None:
    ids = ["b", "a"] * series.ROWS
    both = [value for pair in zip(series.wave(), series.wave(seed=1), strict=True) for value in pair]
    path = series.write(tmp_path / "a.csv", {"shop": ids, "time": np.repeat(series.hours(), 2), "load": both})
    table = load(path, id="shop")
    assert table.ids == ("a", "b")
    assert {name: table.numbers["load"][rows].tolist() for name, rows in table.spans} == {
        "b": series.wave().tolist(),
        "a": series.wave(seed=1).tolist(),
    }


def test_several_targets_are_a_series_each_beside_the_other_columns(tmp_path: Path) -> None:
    path = series.one_series(tmp_path, heat=series.wave(seed=1), price=series.wave(seed=2))
    table = load(path, target=["heat", "load"], known=["price"])
    assert (table.ids, table.target, len(table)) == (("heat", "load"), "target", 2 * series.ROWS)
    assert table.numbers["target"].tolist() == [*series.wave(seed=1), *series.wave()]
    assert table.numbers["price"].tolist() == [*series.wave(seed=2)] * 2


def test_a_csv_without_names_or_times_is_read_by_the_names_that_are_given(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1,2\n3,4\n5,6\n")
    table = series_table.load(SeriesOptions(path=tmp_path / "a.txt", columns=["x", "y"], target=["y", "x"]))
    assert (table.times, table.frequency) == (None, None)
    assert table.numbers["target"].tolist() == [2, 4, 6, 1, 3, 5]


# -- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": "laod"}, r"load\.csv has no column 'laod'; did you mean 'load'\? it has time, load"),
        ({"time": "date"}, "has no column 'date'; did you mean 'time'"),
        ({"known": ["holiday"]}, "has no column 'holiday'"),
    ],
)
def test_a_column_that_is_not_there_is_told_with_the_nearest_one(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message) as told:
        load(series.one_series(tmp_path), **changes)
    assert told.value.config_key == f"data.{next(iter(changes))}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"known": ["load"]}, "column 'load' is named more than once"),
        ({"categorical": ["load"]}, "categorical names 'load', which is not among known"),
        ({"target": ["load", "x"], "id": "shop"}, "give one target, or no id"),
        ({"time": None, "calendar": ["month"]}, "calendar needs a column of times"),
        ({"time": None, "frequency": "1h"}, "frequency is that of a column of times"),
        ({"gaps": "fill"}, "set missing: carry_forward too"),
        ({"target": ["load", "heat"], "known": ["target"]}, "several targets are one input 'target'"),
        ({"known": ["time_index"], "time_index": True}, "'time_index' is the name of an input that is derived"),
        ({"id": "shop", "static": ["shop"]}, "name it under categorical too"),
        ({"split": {"train": 0.5, "validation": 10, "test": 10}}, "give rows .* or shares, not both"),
        ({"split": {"train": 0.8, "validation": 0.2, "test": 0.2}}, "add up to 1.2"),
        ({"calendar": ["week"]}, "hour_of_day"),
    ],
)
def test_options_that_do_not_fit_each_other_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=message):
        series.options(tmp_path / "a.csv", **changes)


# -- times -----------------------------------------------------------------------------------------------------------


def test_a_gap_is_refused_by_series_and_time_or_filled_with_rows_whose_values_are_missing(tmp_path: Path) -> None:
    path = series.write(
        tmp_path / "a.csv", {"time": without(series.hours(), 5, 6), "load": without(series.wave(), 5, 6)}
    )
    with pytest.raises(
        DataError, match=r"a\.csv: series 'a', time 2024-01-01T04:00:00.*: the next time is .*T07:00:00"
    ):
        load(path)
    table = load(path, gaps="fill", missing="carry_forward")
    assert table.times is not None
    assert table.times.astype("datetime64[s]").astype(str).tolist() == series.hours()
    assert np.flatnonzero(np.isnan(table.numbers["load"])).tolist() == [5, 6]


def test_gaps_between_series_are_none_and_each_is_filled_in_its_own_place(tmp_path: Path) -> None:
    times = [*without(series.hours(10), 4), *series.hours(20)[12:]]
    path = series.write(tmp_path / "a.csv", {"shop": ["a"] * 9 + ["b"] * 8, "time": times, "load": np.arange(17.0)})
    table = load(path, id="shop", gaps="fill", missing="carry_forward")
    assert table.begins.tolist() == [0, 10, 18]
    assert np.flatnonzero(np.isnan(table.numbers["load"])).tolist() == [4]
    assert load(path, id="shop", gaps="fill", missing="carry_forward", frequency="1h").begins.tolist() == [0, 10, 18]


@pytest.mark.parametrize(
    ("row", "time", "message"),
    [
        (5, "2024-01-01T04:00:00", r"series 'load', time 2024-01-01T04:00:00.*: stands twice"),
        (
            5,
            "2024-01-01T05:20:00",
            r"time 2024-01-01T04:00:00.*: the next time is .*05:20.*, expected a multiple of 1h",
        ),
        (5, None, "the time 'time' is missing in row 6"),
        (5, "noon", "the time 'time' is of type string, as in '2024-01-01T00:00:00'; expected ISO 8601"),
    ],
)
def test_a_time_that_stands_twice_or_is_irregular_is_refused_even_where_gaps_are_filled(
    row: int, time: str | None, message: str, tmp_path: Path
) -> None:
    times: list[str | None] = list(series.hours())
    times[row] = time
    path = series.one_series(tmp_path, time=times)
    with pytest.raises(DataError, match=message):
        load(path, gaps="fill", missing="carry_forward")


@pytest.mark.parametrize(
    ("times", "expected", "season"),
    [
        (np.arange("2024-01-01T00", "2024-01-09T00", dtype="datetime64[h]"), "1h", 24),
        (np.arange("2024-01-01T00:00", "2024-01-02T00:00", 15, dtype="datetime64[m]"), "15min", 96),
        (np.arange("2024-01-01", "2024-02-01", dtype="datetime64[D]"), "1d", 7),
        (np.arange("2024-01-01", "2024-12-01", 7, dtype="datetime64[D]"), "1w", 52),
        (np.arange("2019-01", "2024-01", dtype="datetime64[M]").astype("datetime64[D]"), "1mo", 12),
        (np.arange("2019-01", "2024-01", dtype="datetime64[M]").astype("datetime64[D]") - 1, "1mo", 12),
        (np.arange("2004-01", "2024-01", 3, dtype="datetime64[M]").astype("datetime64[D]"), "3mo", 4),
        (np.arange("1990", "2024", dtype="datetime64[Y]").astype("datetime64[D]"), "1y", 1),
        (np.arange(100, 400, 5), "5", 1),
    ],
    ids=str,
)
def test_the_frequency_is_that_of_the_data(times: Any, expected: str, season: int, tmp_path: Path) -> None:
    path = series.write(tmp_path / "a.csv", {"time": times, "load": np.arange(len(times), dtype=float)})
    found = load(path, frequency=expected).frequency
    assert found is not None
    assert load(path).frequency == found
    assert (str(found), found.season) == (expected, season)


@pytest.mark.parametrize(
    ("times", "told", "message"),
    [
        (series.hours(50), "2h", "expected a multiple of 2h later; correct data.frequency"),
        (series.hours(50), "1mo", "frequency is 1mo, .* has times at no one place of their months"),
        (series.hours(50), "5", "frequency is 5, "),
        (range(50), "1h", "frequency is 1h, .* has whole numbers"),
    ],
)
def test_a_frequency_that_the_times_cannot_have_is_refused(times: Any, told: str, message: str, tmp_path: Path) -> None:
    path = series.write(tmp_path / "a.csv", {"time": times, "load": np.arange(50.0)})
    with pytest.raises((InputError, DataError), match=message) as refused:
        load(path, frequency=told)
    assert refused.value.config_key == "data.frequency"


def test_a_frequency_that_is_told_holds_where_most_rows_are_farther_apart(tmp_path: Path) -> None:
    kept = [*range(60), *range(60, series.ROWS, 2)]
    path = series.write(tmp_path / "a.csv", {"time": np.array(series.hours())[kept], "load": series.wave()[kept]})
    with pytest.raises(DataError, match=r"expected a multiple of 2h later; correct data\.frequency"):
        load(path, gaps="fill", missing="carry_forward")
    table = load(path, gaps="fill", missing="carry_forward", frequency="1h")
    assert (len(table), int(np.isnan(table.numbers["load"]).sum())) == (319, 129)


def test_each_series_has_its_own_day_of_the_month(tmp_path: Path) -> None:
    months = np.arange("2019-01", "2024-01", dtype="datetime64[M]")
    days = {"a": months.astype("datetime64[D]"), "b": months.astype("datetime64[D]") + 14}
    days["c"] = (months + 1).astype("datetime64[D]") - 1
    times = np.concatenate([without(own, 7) for own in days.values()])
    path = series.write(tmp_path / "a.csv", {"shop": np.repeat([*days], 59), "time": times, "load": np.arange(177.0)})
    table = load(path, id="shop", gaps="fill", missing="carry_forward")
    assert str(table.frequency) == "1mo"
    assert table.times is not None
    assert table.times.astype("datetime64[D]").tolist() == np.concatenate([*days.values()]).tolist()


def test_a_month_that_is_missing_is_filled_at_its_own_end(tmp_path: Path) -> None:
    ends = (np.arange("2023-02", "2024-06", dtype="datetime64[M]")).astype("datetime64[D]") - 1
    path = series.write(tmp_path / "a.csv", {"time": without(ends, 1), "load": np.arange(15.0)})
    table = load(path, gaps="fill", missing="carry_forward")
    assert table.times is not None
    assert table.times.astype("datetime64[D]").tolist() == ends.tolist()


@pytest.mark.parametrize("text", ["", "h1", "1 fortnight", "1.5h", "0h"])
def test_a_frequency_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected a number and one of"):
        Frequency.parse(text)


# -- values ----------------------------------------------------------------------------------------------------------


def test_a_missing_value_is_refused_by_series_time_and_column(tmp_path: Path) -> None:
    values = series.wave()
    values[[7, 9]] = np.nan
    path = series.one_series(tmp_path, load=values)
    with pytest.raises(
        DataError, match=r"series 'load', time 2024-01-01T07.*: 'load' has no value, as in 2 of 320 rows"
    ):
        load(path)
    assert np.flatnonzero(np.isnan(load(path, missing="carry_forward").numbers["load"])).tolist() == [7, 9]


def test_an_infinite_value_and_a_text_among_numbers_are_refused(tmp_path: Path) -> None:
    values = [*map(str, series.wave())]
    with pytest.raises(DataError, match="column 'load', row 4: inf; expected a finite number"):
        load(series.one_series(tmp_path, load=[*values[:3], "inf", *values[4:]]), missing="carry_forward")
    with pytest.raises(DataError, match=r"load\.csv: cannot be read: .*'many'"):
        load(series.one_series(tmp_path, load=[*values[:3], "many", *values[4:]]), missing="carry_forward")


def test_a_text_that_looks_like_no_value_is_a_text_and_an_empty_one_is_missing(tmp_path: Path) -> None:
    names: list[str | None] = ["NA", "null", "nan", None] * (series.ROWS // 4)
    path = series.one_series(tmp_path, shop=["NA"] * series.ROWS, event=names)
    table = load(path, id="shop", known=["event"], categorical=["event"], missing="carry_forward")
    assert (table.ids, table.texts["event"][:4].tolist()) == (("NA",), names[:4])
    with pytest.raises(DataError, match="the id 'event' is missing in row 4"):
        load(path, id="event")


def test_a_column_may_be_called_as_an_input_that_is_not_switched_on(tmp_path: Path) -> None:
    assert load(series.one_series(tmp_path, series=["a"] * series.ROWS), id="series", static_series=True).ids == ("a",)
    assert "time_index" in load(series.one_series(tmp_path, time_index=series.wave()), known=["time_index"]).numbers


@pytest.mark.parametrize("zone", ["", "Z"])
def test_times_of_a_parquet_may_be_texts(zone: str, tmp_path: Path) -> None:
    texts = [f"{time}{zone}" for time in series.hours()]
    pyarrow.parquet.write_table(pa.table({"time": texts, "load": series.wave()}), tmp_path / "load.parquet")
    table = load(tmp_path / "load.parquet")
    assert table.times is not None
    assert table.times.astype("datetime64[s]").astype(str).tolist() == series.hours()


def test_a_static_column_that_changes_is_refused_by_series(tmp_path: Path) -> None:
    kinds = ["large"] * series.ROWS
    assert (
        load(series.one_series(tmp_path, kind=kinds), static=["kind"], categorical=["kind"]).texts["kind"][0] == "large"
    )
    kinds[40] = "small"
    path = series.one_series(tmp_path, kind=kinds)
    with pytest.raises(InputError, match="static column 'kind' is 'large' and 'small' in series 'load'") as told:
        load(path, static=["kind"], categorical=["kind"])
    assert told.value.config_key == "data.static"


def test_a_file_that_is_not_there_or_holds_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such file") as told:
        load(tmp_path / "none.csv")
    assert told.value.config_key == "data.path"
    (tmp_path / "a.csv").write_text("time,load\n")
    with pytest.raises(DataError, match="has no rows"):
        load(tmp_path / "a.csv")
    (tmp_path / "c.csv").write_text("time,load,load\n2024-01-01,1,2\n")
    with pytest.raises(DataError, match="has 2 columns 'load'"):
        load(tmp_path / "c.csv")
    (tmp_path / "b.parquet").write_text("no parquet")
    with pytest.raises(DataError, match="cannot be read"):
        load(tmp_path / "b.parquet")
