"""Series as they stand in a file, each in the order of its times: duplicates, gaps and missing values told by name.

Shapes in names: n rows of all series, one series after another.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from trainwright.data import series_file
from trainwright.data.series_file import Columns
from trainwright.data.series_options import TARGET, SeriesOptions
from trainwright.data.series_times import Frequency, Ticks, Times, fits, frequency_of, ticks_of, times_of
from trainwright.errors import DataError, InputError, about

ADDED: Final = -1  # in place of a row of the file


@dataclass(frozen=True, slots=True)
class Table:
    """Series, one after another. `begins` has the row at which each begins, and at its end the number of rows.

    `numbers` are float64, NaN where missing; `texts` None there. `times` and `frequency` are None for rows that merely
    follow each other.
    """

    path: Path
    sha256: str
    ids: tuple[str, ...]
    begins: Ticks
    times: Times | None
    frequency: Frequency | None
    target: str
    numbers: Mapping[str, Any]
    texts: Mapping[str, Any]

    def __len__(self) -> int:
        return int(self.begins[-1])

    @property
    def spans(self) -> Iterator[tuple[str, slice]]:
        """Give the id of each series and its rows."""
        for name, (begin, end) in zip(self.ids, pairwise(self.begins.tolist()), strict=True):
            yield name, slice(begin, end)

    def where(self, row: int) -> str:
        """Tell a row by its series and time."""
        series = int(np.searchsorted(self.begins, row, side="right")) - 1
        place = f"row {row - self.begins[series] + 1}" if self.times is None else f"time {self.times[row]}"
        return f"{self.path}: series {self.ids[series]!r}, {place}"


def load(options: SeriesOptions) -> Table:
    """Read the file that `options` names and put its rows in order: series by their ids, each by its times.

    A row's place in the file does not matter.

    Errors: as `series_file.read`; DataError for a time that stands twice, is irregular, or is missing under
    `gaps: refuse`, a value that is missing under `missing: refuse`, and a static column that changes; InputError for a
    frequency that the data have not.
    """
    table = _in_order(series_file.read(options), options)
    if table.times is not None:
        table = _regular(table, options)
    if not isinstance(options.target, str):
        table = _a_series_each(table, options.target)
    _check_static(table, options)
    if options.missing == "refuse":
        _refuse_missing(table)
    return table


def _in_order(columns: Columns, options: SeriesOptions) -> Table:
    ids = sorted(set(columns.ids)) if columns.ids is not None else [columns.path.stem]
    places = {name: place for place, name in enumerate(ids)}
    owners_n = np.zeros(columns.rows, np.int64)
    if columns.ids is not None:
        owners_n = np.array([places[name] for name in columns.ids], np.int64)
    order = np.lexsort((owners_n,) if columns.times is None else (columns.times, owners_n))
    begins = np.searchsorted(owners_n[order], np.arange(len(ids) + 1))
    table = Table(
        path=columns.path,
        sha256=columns.sha256,
        ids=tuple(ids),
        begins=begins,
        times=columns.times,
        frequency=None,
        target=options.target if isinstance(options.target, str) else TARGET,
        numbers=columns.numbers,
        texts=columns.texts,
    )
    return _taken(table, order, begins)


def _taken(table: Table, rows: Ticks, begins: Ticks) -> Table:
    """Give the table with these rows of it; where one is `ADDED`, every value is missing."""
    added = rows == ADDED
    times = None if table.times is None else table.times[rows]
    numbers = {name: np.where(added, np.nan, values[rows]) for name, values in table.numbers.items()}
    texts = {name: np.where(added, None, values[rows]) for name, values in table.texts.items()}
    return replace(table, begins=begins, times=times, numbers=numbers, texts=texts)


# -- times -----------------------------------------------------------------------------------------------------------


def _regular(table: Table, options: SeriesOptions) -> Table:
    """Give the table with its frequency and with every time of it."""
    assert table.times is not None
    frequency = _frequency(table, options.frequency)
    ticks = ticks_of(table.times, frequency.unit)
    apart = np.diff(ticks)
    apart[table.begins[1:-1] - 1] = frequency.size
    with about("data.frequency"):
        _refuse_irregular(table, apart, frequency)
    missing = np.flatnonzero(apart != frequency.size)
    if len(missing) and options.gaps == "refuse":
        first = int(missing[0])
        raise DataError(
            f"{table.where(first)}: the next time is {table.times[first + 1]}, expected one {frequency} later, as at "
            f"{len(missing)} places; add the rows, or set data.gaps: fill and data.missing: carry_forward"
        )
    whole = _filled(table, ticks, apart // frequency.size, frequency) if len(missing) else table
    return replace(whole, frequency=frequency)


def _frequency(table: Table, told: str | None) -> Frequency:
    """Give the frequency as it is told, or else as the data have it."""
    begins = np.zeros(len(table), bool)
    begins[table.begins[:-1]] = True
    assert table.times is not None
    if told is not None:
        with about("data.frequency"):
            frequency = Frequency.parse(told)
            if not fits(frequency, table.times, begins):
                times = "whole numbers" if table.times.dtype.kind == "i" else "times at no one place of their months"
                raise InputError(f"frequency is {frequency}, {table.path} has {times}; correct it")
            return frequency
    try:
        return frequency_of(table.times, begins)
    except DataError as error:
        raise DataError(f"{table.path}: {error}") from error


def _refuse_irregular(table: Table, apart: Ticks, frequency: Frequency) -> None:
    wrong = np.flatnonzero((apart <= 0) | (apart % frequency.size != 0))
    if not len(wrong):
        return
    first = int(wrong[0])
    assert table.times is not None
    if apart[first] == 0:
        raise DataError(f"{table.where(first)}: stands twice; keep one row for each time, or name the series' id")
    raise DataError(
        f"{table.where(first)}: the next time is {table.times[first + 1]}, expected a multiple of {frequency} later; "
        "correct data.frequency, or bring the series to one frequency first"
    )


def _filled(table: Table, ticks: Ticks, steps: Ticks, frequency: Frequency) -> Table:
    """Give the table with a row for each time that is missing between two of a series."""
    places = np.concatenate(([0], np.cumsum(steps)))  # of each row among all that there will be
    rows = np.full(places[-1] + 1, ADDED)
    rows[places] = np.arange(len(places))
    before = np.maximum.accumulate(rows)
    all_ticks = ticks[before] + (np.arange(len(rows)) - places[before]) * frequency.size
    assert table.times is not None
    begins = np.append(places[table.begins[:-1]], len(rows))
    parts = zip(pairwise(begins.tolist()), table.spans, strict=True)
    times = [times_of(all_ticks[begin:end], frequency.unit, table.times[own]) for (begin, end), (_, own) in parts]
    return replace(_taken(table, rows, begins), times=np.concatenate(times))


# -- targets and values ----------------------------------------------------------------------------------------------


def _a_series_each(table: Table, targets: list[str]) -> Table:
    """Give a series for each column of targets, with all other columns beside each."""
    count, rows = len(targets), len(table)
    shared = [name for name in table.numbers if name not in targets]
    numbers = {name: np.tile(table.numbers[name], count) for name in shared}
    return replace(
        table,
        ids=tuple(targets),
        begins=np.arange(count + 1) * rows,
        times=None if table.times is None else np.tile(table.times, count),
        numbers={**numbers, TARGET: np.concatenate([table.numbers[name] for name in targets])},
        texts={name: np.tile(values, count) for name, values in table.texts.items()},
    )


def missing_in(values: Any) -> Any:
    """Tell where values are missing."""
    return np.isnan(values) if values.dtype.kind == "f" else values == None  # noqa: E711  element by element


def _check_static(table: Table, options: SeriesOptions) -> None:
    for name in options.static:
        values = table.numbers[name] if name in table.numbers else table.texts[name]
        for series, rows in table.spans:
            own = values[rows]
            given = own[~missing_in(own)]
            if len(given) and (given != given[0]).any():
                with about("data.static"):
                    raise InputError(
                        f"{table.path}: static column {name!r} is {given[0]!r} and {given[given != given[0]][0]!r} in "
                        f"series {series!r}; what changes belongs under data.known or data.observed"
                    )


def _refuse_missing(table: Table) -> None:
    for name, values in (*table.numbers.items(), *table.texts.items()):
        missing = np.flatnonzero(missing_in(values))
        if len(missing):
            raise DataError(
                f"{table.where(int(missing[0]))}: {name!r} has no value, as in {len(missing)} of {len(table)} rows; "
                "give it one, or set data.missing: carry_forward"
            )
