"""Panels of illustrations as SVG text, in the manner of `charts`: lines with bands, bars by name, and heat grids."""

import math
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Final, Literal, assert_never

from trainwright.charts import (
    HALF,
    WIDE,
    Axis,
    Band,
    Frame,
    Series,
    Size,
    drawn_values,
    line_chart,
    linear_axis,
    nothing,
    short,
    svg,
    text_at,
)
from trainwright.illustrations import Bars, Grid, Lines, Number, Panel

STYLES: Final[Sequence[Literal["first", "second"]]] = ("first", "second")
BAR_HEIGHT: Final = 24
LABEL_LENGTH: Final = 24
MOST_ROWS, MOST_COLUMNS = 48, 96  # of a grid as drawn; a larger one is drawn as means of blocks
NO_NUMBER: Final = "no value that can be drawn is on record"


def draw(panel: Panel) -> str:
    """Give a panel as SVG; a sentence in place of one that holds no number."""
    match panel:
        case Lines():
            return _lines(panel)
        case Bars():
            return bar_chart(panel.labels, panel.values, unit=panel.unit)
        case Grid():
            return heat_grid(panel)
        case _:
            assert_never(panel)


def is_wide(panel: Panel) -> bool:
    """Tell whether a panel takes the page's width: what runs over time does."""
    return isinstance(panel, Lines)


def _lines(panel: Lines) -> str:
    series = [
        Series(line.label, list(zip(line.x, line.y, strict=True)), style)
        for line, style in zip(panel.lines, cycle(STYLES), strict=False)
    ]
    bands = [Band(band.label, list(zip(band.x, band.low, band.high, strict=True))) for band in panel.bands]
    return line_chart(series, x_unit=panel.x_unit, y_unit=panel.y_unit, size=WIDE, bands=bands)


# -- bars ------------------------------------------------------------------------------------------------------------


def bar_chart(labels: Sequence[str], values: Sequence[Number], *, unit: str) -> str:
    """Draw a bar a name from zero, its value at its end; a value that is no number has a name and no bar."""
    finite = drawn_values(list(enumerate(values)))
    if not finite:
        return nothing(NO_NUMBER)
    size = Size(HALF.width, BAR_HEIGHT * len(values) + 24)
    axis = linear_axis(min(0.0, *finite), max(0.0, *finite), 5)
    frame = Frame(size, axis, Axis(0, 1, ()), right=70, left=160, top=24, bottom=0)
    rows = enumerate(zip(labels, values, strict=True))
    body = [text_at(frame.left, 12, unit, "tick"), *(part for row in rows for part in _bar(frame, *row))]
    return svg(size, body, f"{unit} by name")


def _bar(frame: Frame, place: int, row: tuple[str, Number]) -> Iterator[str]:
    name, value = row
    top = frame.top + BAR_HEIGHT * place
    yield text_at(frame.left - 8, top + 15, _cut(name), "tick end")
    if value is None or not math.isfinite(value):
        yield text_at(frame.left + 5, top + 15, "no number", "tick")
        return
    ends = sorted((frame.pixel(0, 0)[0], frame.pixel(value, 0)[0]))
    yield (
        f'<rect class="bar" x="{ends[0]:.1f}" y="{top + 3}" width="{max(ends[1] - ends[0], 0.5):.1f}"'
        f' height="{BAR_HEIGHT - 7}"/>'
    )
    yield text_at(ends[1] + 6, top + 15, short(value), "tick")


def _cut(name: str) -> str:
    return name if len(name) <= LABEL_LENGTH else f"{name[: LABEL_LENGTH - 1]}…"


# -- grids -----------------------------------------------------------------------------------------------------------


def heat_grid(panel: Grid) -> str:
    """Draw a cell a value, the stronger the larger; a cell without a number is left out.

    A grid of more than 48 rows or 96 columns is drawn as means of blocks of it, and says so.
    """
    values = [value for row in panel.rows for value in drawn_values(list(enumerate(row)))]
    if not values:
        return nothing(NO_NUMBER)
    height, width = len(panel.rows), len(panel.rows[0])
    down, across = math.ceil(height / MOST_ROWS), math.ceil(width / MOST_COLUMNS)
    x = _counting(panel.x_first, width, HALF.width // 95)
    y = _counting(panel.y_first, height, HALF.height // 55)
    frame = Frame(HALF, x, Axis(y.high, y.low, y.ticks), right=24)
    low, high = min(values), max(values)
    cells = _cells(frame, panel, down, across, (low, high))
    told = f"{panel.unit} from {short(low)} (faint) to {short(high)} (strong)"
    told += f"; means of {down} × {across}" if down * across > 1 else ""
    return svg(HALF, [*_grid_axes(frame, panel, told), *cells], f"{panel.unit} by {panel.x_unit} and {panel.y_unit}")


def _counting(first: int, count: int, ticks: int) -> Axis:
    """Give an axis of whole numbers whose cells are centred on them."""
    whole = linear_axis(first, max(first + count - 1, first + 1), ticks, whole=True, round_out=False)
    return Axis(first - 0.5, first + count - 0.5, tuple(tick for tick in whole.ticks if tick < first + count))


def _cells(frame: Frame, panel: Grid, down: int, across: int, span: tuple[float, float]) -> Iterator[str]:
    low, high = span
    for top in range(0, len(panel.rows), down):
        block = panel.rows[top : top + down]
        for left in range(0, len(block[0]), across):
            held = [row[left : left + across] for row in block]
            found = [value for row in held for value in drawn_values(list(enumerate(row)))]
            if found:
                strength = (sum(found) / len(found) - low) / (high - low) if high > low else 1.0
                corner = (panel.x_first + left, panel.y_first + top)
                yield _cell(frame, corner, (len(held[0]), len(held)), strength)


def _cell(frame: Frame, corner: tuple[int, int], extent: tuple[int, int], strength: float) -> str:
    x, y = frame.pixel(corner[0] - 0.5, corner[1] - 0.5)
    right, bottom = frame.pixel(corner[0] + extent[0] - 0.5, corner[1] + extent[1] - 0.5)
    return (
        f'<rect class="cell" x="{x:.1f}" y="{y:.1f}" width="{right - x:.1f}" height="{bottom - y:.1f}"'
        f' fill-opacity="{0.04 + 0.96 * strength:.2f}"/>'
    )


def _grid_axes(frame: Frame, panel: Grid, told: str) -> Iterator[str]:
    base, right = frame.size.height - frame.bottom, frame.size.width - frame.right
    for tick in frame.x.ticks:
        yield text_at(frame.pixel(tick, frame.y.low)[0], base + 14, frame.x.label(tick), "tick middle")
    for tick in frame.y.ticks:
        yield text_at(frame.left - 8, frame.pixel(frame.x.low, tick)[1] + 4, frame.y.label(tick), "tick end")
    yield text_at(0, 12, panel.y_unit, "tick")
    yield text_at(right, base + 27, panel.x_unit, "tick end")
    yield text_at(right, 12, told, "tick end")
