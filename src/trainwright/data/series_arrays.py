"""Series as arrays of numbers and codes, one series after another, and where their parts end. Nothing is scaled yet.

Shapes in names: n rows of all series, s series, r real variables, k categorical ones, p parts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from trainwright.data import series_table
from trainwright.data.series import Inputs, Variable
from trainwright.data.series_options import PARTS, SERIES, TIME_INDEX, Part, SeriesOptions
from trainwright.data.series_table import Table, missing_in
from trainwright.data.series_times import CATEGORIES, Ticks, calendar, calendar_real
from trainwright.errors import DataError, InputError, about

UNSEEN: Final = 0  # the code of a category that no training row holds, and of a missing one


class Kind(NamedTuple):
    """Variables of one kind and their values: reals in float64, NaN where missing, and codes in int64.

    (n, r) and (n, k); of static variables (s, r) and (s, k).
    """

    variables: tuple[Variable, ...]
    reals: Any
    codes: Any


@dataclass(frozen=True, slots=True)
class Arrays:
    """All that windows are cut from. The last `unscaled` reals of `known` are the calendar's and need no scale.

    `ends_sp` has the row at which each part of a series ends; training begins with the series. `categories` has the
    texts of each categorical column that has codes of its own: the first has code 1.
    """

    table: Table
    options: SeriesOptions
    static: Kind
    known: Kind
    observed: Kind  # the target is the first of its reals
    unscaled: int
    ends_sp: Ticks
    categories: Mapping[str, Sequence[str]]

    @property
    def inputs(self) -> Inputs:
        return Inputs(self.static.variables, self.known.variables, self.observed.variables)

    @property
    def season(self) -> int:
        """Give the steps after which the target repeats itself, as told, or as is usual at its frequency."""
        usual = 1 if self.table.frequency is None else self.table.frequency.season
        return self.options.season or usual

    def spans(self, part: Part) -> Iterator[slice]:
        """Give the rows of the part in each series."""
        place = PARTS.index(part)
        begins = self.table.begins[:-1] if place == 0 else self.ends_sp[:, place - 1]
        yield from map(slice, begins.tolist(), self.ends_sp[:, place].tolist())


def load(options: SeriesOptions) -> Arrays:
    """Read the series. Errors: as `series_table.load`; DataError for a series that is shorter than its parts need."""
    table = series_table.load(options)
    kinds = _Kinds(table, options, _ends(table, options))
    return Arrays(
        table=table,
        options=options,
        static=kinds.static(),
        known=kinds.known(),
        observed=kinds.observed(),
        unscaled=sum(name not in options.categorical for name in options.calendar),
        ends_sp=kinds.ends_sp,
        categories=kinds.categories,  # the last, for the kinds above fill it
    )


def _ends(table: Table, options: SeriesOptions) -> Ticks:
    """Give the end of each part. A series that has no window to train on, or not all of its parts, is refused."""
    ends, window = [], options.context + options.horizon
    for name, rows in table.spans:
        length = rows.stop - rows.start
        parts = options.split.ends(length)
        with about("data.split"):
            if parts[-1] > length:
                raise DataError(
                    f"{table.path}: series {name!r} has {length} rows, data.split asks for {parts[-1]}; give fewer, or "
                    "shares"
                )
            if parts[0] < window:
                raise DataError(
                    f"{table.path}: series {name!r} has {parts[0]} rows to train on, a window takes {window} (context "
                    f"{options.context} + horizon {options.horizon}); leave the series out, or shorten the window"
                )
        ends.append([rows.start + end for end in parts])
    return np.array(ends, np.int64)


class _Kinds:
    """Makes the variables of each kind of a table."""

    def __init__(self, table: Table, options: SeriesOptions, ends_sp: Ticks) -> None:
        self.table, self.options, self.ends_sp = table, options, ends_sp
        self.categories: dict[str, list[str]] = {}
        self.trained_n = np.zeros(len(table), bool)
        for begin, end in zip(table.begins[:-1], ends_sp[:, 0], strict=True):
            self.trained_n[begin:end] = True

    def observed(self) -> Kind:
        reals = {self.table.target: self.table.numbers[self.table.target]}
        return self._kind(self.options.observed, reals, {}, len(self.table))

    def known(self) -> Kind:
        dates = [name for name in self.options.calendar if name not in self.options.categorical]
        coded = [name for name in self.options.calendar if name in self.options.categorical]
        derived: dict[str, Any] = {TIME_INDEX: self._time_index()} if self.options.time_index else {}
        derived |= {name: calendar_real(self._times(), name) for name in dates}
        codes: dict[str, Any] = {name: (CATEGORIES[name] + 1, calendar(self._times(), name) + 1) for name in coded}
        return self._kind(self.options.known, {}, codes, len(self.table), after=derived)

    def static(self) -> Kind:
        """Give the first value that a series has."""
        whole = self._kind(self.options.static, {}, {}, len(self.table), over_time=False)
        count = len(self.table.ids)
        firsts = [self._first(values) for values in (*whole.reals.T, *whole.codes.T)]
        split = whole.reals.shape[1]
        variables, codes = whole.variables, firsts[split:]
        if self.options.static_series:
            variables, codes = (*variables, Variable(SERIES, count + 1)), [*codes, np.arange(count) + 1]
        return Kind(variables, _stacked(firsts[:split], count), _stacked(codes, count, np.int64))

    def _kind(
        self,
        names: Sequence[str],
        before: Mapping[str, Any],
        codes: Mapping[str, tuple[int, Any]],
        rows: int,
        *,
        after: Mapping[str, Any] | None = None,
        over_time: bool = True,
    ) -> Kind:
        own = {n: self.table.numbers[n] for n in names if n not in self.options.categorical}
        reals = {**before, **own, **(after or {})}
        coded = {n: self._codes(n, over_time=over_time) for n in names if n in self.options.categorical}
        coded |= codes
        variables = (*map(Variable, reals), *(Variable(n, count) for n, (count, _) in coded.items()))
        numbers = [values for _, values in coded.values()]
        return Kind(variables, _stacked(list(reals.values()), rows), _stacked(numbers, rows, np.int64))

    def _codes(self, name: str, *, over_time: bool) -> tuple[int, Any]:
        """Give how many codes there are, and those of each row; of what changes, training rows alone have one."""
        values = self.table.texts[name]
        seen = values[self.trained_n & ~missing_in(values)] if over_time else values[~missing_in(values)]
        places = {text: place for place, text in enumerate(sorted(set(seen)), UNSEEN + 1)}
        self.categories[name] = list(places)
        return len(places) + 1, np.array([places.get(value, UNSEEN) for value in values], np.int64)

    def _first(self, values: Any) -> Any:
        missing = missing_in(values) if values.dtype.kind == "f" else values == UNSEEN
        places = [
            own.start + int(missing[own].argmin()) for _, own in self.table.spans
        ]  # its first, if all are missing
        return values[places]

    def _time_index(self) -> Any:
        begins = np.repeat(self.table.begins[:-1], np.diff(self.table.begins))
        return np.arange(len(self.table), dtype=np.float64) - begins

    def _times(self) -> Any:
        times = self.table.times
        assert times is not None
        if times.dtype.kind == "i":
            with about("data.calendar"):
                raise InputError(f"the times of {self.table.path} are whole numbers, which no calendar tells of")
        return times


def _stacked(columns: Sequence[Any], rows: int, kind: Any = np.float64) -> Any:
    return np.stack(columns, 1).astype(kind) if columns else np.zeros((rows, 0), kind)
