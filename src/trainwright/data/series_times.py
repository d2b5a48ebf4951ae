"""The times of series: how far apart they are, which are missing, which season they have, and what the calendar says.

A time is a whole number of ticks: microseconds, months, or what the file counts in.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from trainwright.data.series_options import Calendar
from trainwright.errors import DataError, InputError

Times: TypeAlias = npt.NDArray[Any]  # datetime64[us], or int64
Ticks: TypeAlias = npt.NDArray[np.int64]
Unit: TypeAlias = Literal["us", "mo", "count"]

SECOND: Final = 1_000_000
DAY: Final = 86_400 * SECOND
UNITS: Final[Mapping[str, tuple[int, Unit]]] = {
    "us": (1, "us"),
    "ms": (1_000, "us"),
    "s": (SECOND, "us"),
    "min": (60 * SECOND, "us"),
    "h": (3_600 * SECOND, "us"),
    "d": (DAY, "us"),
    "w": (7 * DAY, "us"),
    "mo": (1, "mo"),
    "y": (12, "mo"),
    "": (1, "count"),
}
SHORTEST_MONTH: Final = 28 * DAY


@dataclass(frozen=True, slots=True)
class Frequency:
    """The distance between two rows that follow each other: `size` ticks of `unit`."""

    size: int
    unit: Unit

    @classmethod
    def parse(cls, text: str) -> "Frequency":
        """Read `1h`, `15min`, `1mo` or a whole number. Errors: InputError."""
        match = re.fullmatch(r"(\d*)\s*([a-z]*)", text.strip())
        if match is None or match[2] not in UNITS or not match[0].strip() or match[1] == "0":
            raise InputError(
                f"frequency {text!r}: expected a number and one of {', '.join(filter(None, UNITS))}, as 1h"
            )
        size, unit = UNITS[match[2]]
        return cls(int(match[1] or 1) * size, unit)

    def __str__(self) -> str:
        fitting = [(size, name) for name, (size, unit) in UNITS.items() if unit == self.unit and not self.size % size]
        size, name = max(fitting)
        return f"{self.size // size}{name}"

    @property
    def season(self) -> int:
        """Give the steps of the usual season: a day, a week of days, a year of weeks or months; 1 where none is."""
        if self.unit == "mo":
            return max(1, 12 // self.size)
        if self.unit == "count" or self.size > 7 * DAY:
            return 1
        if self.size < DAY:
            return 1 if DAY % self.size else DAY // self.size
        return {DAY: 7, 7 * DAY: 52}.get(self.size, 1)


def frequency_of(times: Times, begins: npt.NDArray[np.bool_]) -> Frequency:
    """Give the commonest distance between times that follow each other; `begins` is True where a series begins.

    Rows of a series on one day of each month, or on its last one, are a month apart, or some months. Errors: DataError
    when no series has two times.
    """
    apart: Any = np.diff(times.astype(np.int64))[~begins[1:]]
    apart = apart[apart > 0]
    if not len(apart):
        raise DataError("no series has two times, so they have no frequency")
    usual = commonest(apart)
    if times.dtype.kind == "i":
        return Frequency(usual, "count")
    if usual >= SHORTEST_MONTH and _is_monthly(times, begins):
        return Frequency(commonest(np.diff(ticks_of(times, "mo"))[~begins[1:]]), "mo")
    return Frequency(usual, "us")


def commonest(values: Ticks) -> int:
    found, counts = np.unique(values, return_counts=True)
    return int(found[counts.argmax()])


def fits(frequency: Frequency, times: Times, begins: npt.NDArray[np.bool_]) -> bool:
    """Tell whether times can have a frequency at all: whole numbers one without a unit, months one place of theirs."""
    if times.dtype.kind == "i" or frequency.unit == "count":
        return times.dtype.kind == "i" and frequency.unit == "count"
    return frequency.unit != "mo" or _is_monthly(times, begins)


def _is_monthly(times: Times, begins: npt.NDArray[np.bool_]) -> bool:
    """Tell whether the times of each series stand at one place of their month, from its beginning or from its end."""
    months, firsts = times.astype("datetime64[M]"), np.flatnonzero(begins)
    since, until = times - months.astype(times.dtype), (months + 1).astype(times.dtype) - times
    of_series = np.cumsum(begins) - 1
    same = [np.logical_and.reduceat(places == places[firsts][of_series], firsts) for places in (since, until)]
    return bool(np.logical_or(*same).all())


def ticks_of(times: Times, unit: Unit) -> Ticks:
    return times.astype("datetime64[M]").astype(np.int64) if unit == "mo" else times.astype(np.int64)


def times_of(ticks: Ticks, unit: Unit, like: Times) -> Times:
    """Give the times of ticks; months stand where `like`, times of the same series, stand in theirs."""
    if unit != "mo":
        return ticks.astype(like.dtype)
    months, of_like = ticks.astype("datetime64[M]"), like.astype("datetime64[M]")
    since, until = like - of_like.astype(like.dtype), (of_like + 1).astype(like.dtype) - like
    if len(np.unique(since)) == 1:
        return np.asarray(months.astype(like.dtype) + since[0])
    return np.asarray((months + 1).astype(like.dtype) - until[0])


# -- the calendar ----------------------------------------------------------------------------------------------------

CATEGORIES: Final[Mapping[Calendar, int]] = {
    "minute": 60,
    "hour_of_day": 24,
    "day_of_week": 7,
    "day_of_month": 31,
    "day_of_year": 366,
    "month": 12,
}


def calendar(times: Times, name: Calendar) -> Ticks:
    """Give a number of the calendar for each time, from 0: Monday, January and the first of a month are 0."""
    days = times.astype("datetime64[D]")
    months, years = times.astype("datetime64[M]"), times.astype("datetime64[Y]")
    seconds = (times - days.astype(times.dtype)).astype("timedelta64[s]").astype(np.int64)
    found: Mapping[Calendar, Callable[[], Any]] = {
        "minute": lambda: seconds // 60 % 60,
        "hour_of_day": lambda: seconds // 3_600,
        "day_of_week": lambda: (days.astype(np.int64) + 3) % 7,  # 1970 began on a Thursday
        "day_of_month": lambda: (days - months.astype(days.dtype)).astype(np.int64),
        "day_of_year": lambda: (days - years.astype(days.dtype)).astype(np.int64),
        "month": lambda: (months - years.astype(months.dtype)).astype(np.int64),
    }
    return np.asarray(found[name]())


def calendar_real(times: Times, name: Calendar) -> npt.NDArray[np.float64]:
    """Give the same from -0.5 to 0.5."""
    return calendar(times, name) / (CATEGORIES[name] - 1) - 0.5
