"""Illustrations: what a trainable shows of itself beside its numbers, as panels that a report draws.

A panel is data, not a picture; it is small (hundreds of numbers, a few thousand in a grid). A number that is None or
not finite is a gap, and is written as null. `about` says in a few words what is seen. Arrays and tensors may be given
for lists; what is kept are lists of floats.
"""

import math
import operator
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import msgspec

Number: TypeAlias = float | None
MOST_LINES: Final = 2  # that can be told from each other where they are drawn


class Line(msgspec.Struct, frozen=True):
    """A named line. `x` and `y` have one length, `x` is finite. Errors: ValueError where that is not so."""

    label: str
    x: Sequence[float]
    y: Sequence[Number]

    def __post_init__(self) -> None:
        what = f"line {self.label!r}"
        _keep(self, x=_places(what, self.x), y=_numbers(what, "y", self.y))
        _check_lengths(what, x=self.x, y=self.y)


class Band(msgspec.Struct, frozen=True):
    """The area between two lines, as between two quantiles. Errors: ValueError as `Line`."""

    label: str
    x: Sequence[float]
    low: Sequence[Number]
    high: Sequence[Number]

    def __post_init__(self) -> None:
        what = f"band {self.label!r}"
        low, high = _numbers(what, "low", self.low), _numbers(what, "high", self.high)
        _keep(self, x=_places(what, self.x), low=low, high=high)
        _check_lengths(what, x=self.x, low=self.low, high=self.high)


class Lines(msgspec.Struct, frozen=True, tag="lines", kw_only=True):
    """One or two lines over one pair of axes, with the bands behind them. Errors: ValueError for more, or none."""

    title: str
    about: str
    x_unit: str
    y_unit: str
    lines: Sequence[Line]
    bands: Sequence[Band] = ()

    def __post_init__(self) -> None:
        if not 1 <= len(self.lines) <= MOST_LINES:
            raise ValueError(f"panel {self.title!r} has {len(self.lines)} lines; expected one or two, give more panels")


class Bars(msgspec.Struct, frozen=True, tag="bars", kw_only=True):
    """A bar a name, in the order given, as the importances of variables. Errors: ValueError as `Band`."""

    title: str
    about: str
    unit: str
    labels: Sequence[str]
    values: Sequence[Number]

    def __post_init__(self) -> None:
        what = f"panel {self.title!r}"
        _keep(self, labels=list(map(str, self.labels)), values=_numbers(what, "values", self.values))
        _check_lengths(what, labels=self.labels, values=self.values)


class Grid(msgspec.Struct, frozen=True, tag="grid", kw_only=True):
    """A value at each place of a grid, first row on top, as attention of each step to each step.

    Column and row numbers begin at `x_first` and `y_first`. Errors: ValueError for rows of different lengths.
    """

    title: str
    about: str
    x_unit: str
    y_unit: str
    unit: str
    rows: Sequence[Sequence[Number]]
    x_first: int = 0
    y_first: int = 0

    def __post_init__(self) -> None:
        what = f"panel {self.title!r}"
        _keep(self, rows=[_numbers(what, "rows", row) for row in self.rows])
        _keep(self, x_first=operator.index(self.x_first), y_first=operator.index(self.y_first))
        if len({len(row) for row in self.rows}) > 1:
            raise ValueError(f"{what} has rows of {sorted({len(row) for row in self.rows})} values")


Panel: TypeAlias = Lines | Bars | Grid


class Illustration(msgspec.Struct, frozen=True):
    """illustration.json of an attempt: the panels made right after its best validation so far, at `step`."""

    step: int
    panels: Sequence[Panel]


def _keep(panel: msgspec.Struct, **parts: object) -> None:
    for name, value in parts.items():
        msgspec.structs.force_setattr(panel, name, value)


def _numbers(what: str, part: str, values: Sequence[Any]) -> list[Number]:
    """Give numbers of any library as floats."""
    try:
        return [None if value is None else float(value) for value in values]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what} has in {part} what is no number: {error}; expected numbers and None") from error


def _places(what: str, values: Sequence[Any]) -> list[float]:
    """Give what must stand somewhere on an axis."""
    places = [value for value in _numbers(what, "x", values) if value is not None and math.isfinite(value)]
    if len(places) < len(values):
        raise ValueError(f"{what} has {len(values) - len(places)} in x that are not finite; expected finite numbers")
    return places


def _check_lengths(what: str, **parts: Sequence[object]) -> None:
    lengths = {name: len(values) for name, values in parts.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{length} in {name}" for name, length in lengths.items())
        raise ValueError(f"{what} has {told}; expected as many in each")
