"""Means and deviations that put series on one scale, of their training rows alone.

Shapes in names: n rows of all series, s series, r real variables over time: those observed, then those known.
"""

from typing import Any, NamedTuple

import numpy as np

from trainwright.data.series_arrays import Arrays
from trainwright.errors import DataError, about


class Scales(NamedTuple):
    """float64: each series has its own of what changes over time; static variables have theirs over all series."""

    mean_sr: Any
    deviation_sr: Any
    static_mean_r: Any
    static_deviation_r: Any


def fit(arrays: Arrays) -> Scales:
    """Give mean and deviation (of the population) of the values that the training rows hold; no others are looked at.

    What does not vary, and what has no value there, is left in its own unit. Errors: DataError for a series without a
    target to train on.
    """
    reals_nr = np.concatenate((arrays.observed.reals, arrays.known.reals), 1)
    moments = [_moments(reals_nr[rows]) for rows in arrays.spans("training")]
    mean_sr, deviation_sr, count_sr = (np.stack(parts) for parts in zip(*moments, strict=True))
    if not count_sr[:, 0].all():
        name = arrays.table.ids[int(np.flatnonzero(count_sr[:, 0] == 0)[0])]
        with about("data.target"):
            raise DataError(f"{arrays.table.path}: series {name!r} has no value of the target in its training rows")
    if arrays.unscaled:
        mean_sr[:, -arrays.unscaled :], deviation_sr[:, -arrays.unscaled :] = 0.0, 1.0
    static_mean_r, static_deviation_r, _ = _moments(arrays.static.reals)
    return Scales(mean_sr, deviation_sr, static_mean_r, static_deviation_r)


def _moments(values_nr: Any) -> tuple[Any, Any, Any]:
    """Give mean, deviation and number of the values that are there."""
    there = ~np.isnan(values_nr)
    count_r, values_nr = there.sum(0), np.where(there, values_nr, 0.0)
    mean_r = values_nr.sum(0) / np.maximum(count_r, 1)
    squares_nr = np.where(there, values_nr - mean_r, 0.0) ** 2
    deviation_r = np.sqrt(squares_nr.sum(0) / np.maximum(count_r, 1))
    # the mean of equal numbers may be another by rounding, and their deviation then not quite 0
    least_r, most_r = np.where(there, values_nr, np.inf).min(0), np.where(there, values_nr, -np.inf).max(0)
    return mean_r, np.where(least_r < most_r, deviation_r, 1.0), count_r


def shift(used: Scales, expected: Scales) -> float:
    """Give how far scales are from those expected, at most: means and deviations in units of the expected deviation."""
    pairs = ((used[place], expected[place], expected[place | 1]) for place in range(len(expected)))
    return max((float(np.abs((own - other) / unit).max()) for own, other, unit in pairs if own.size), default=0.0)


def scaled(arrays: Arrays, scales: Scales) -> tuple[Any, Any, Any]:
    """Give the reals observed and known (n, r) and the static ones (s, r), in float32, on these scales.

    A missing value is the last one before it in its series; where there is none before, it is the mean, 0.
    """
    lengths = np.diff(arrays.table.begins)
    mean_nr, deviation_nr = (np.repeat(part, lengths, 0) for part in (scales.mean_sr, scales.deviation_sr))
    reals_nr = np.concatenate((arrays.observed.reals, arrays.known.reals), 1)
    over_time = np.nan_to_num((_carried(reals_nr, arrays.table.begins) - mean_nr) / deviation_nr).astype(np.float32)
    static = np.nan_to_num((arrays.static.reals - scales.static_mean_r) / scales.static_deviation_r).astype(np.float32)
    observed = arrays.observed.reals.shape[1]
    return over_time[:, :observed], over_time[:, observed:], static


def _carried(values_nr: Any, begins: Any) -> Any:
    """Carry each value forward over those that are missing, within its series."""
    if not np.isnan(values_nr).any():
        return values_nr
    rows = np.arange(len(values_nr))[:, None]
    own = np.repeat(begins[:-1], np.diff(begins))[:, None]
    last_nr = np.maximum.accumulate(np.where(np.isnan(values_nr), own, rows), 0)
    return np.take_along_axis(values_nr, last_nr, 0)
