"""Charts as SVG text: pure functions of data, without script, font or colour; the page's CSS gives the colours.

A point is (x, y). A y that is None or not finite is a gap: the line breaks there and nothing is drawn across it.
"""

import math
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Final, Literal, TypeAlias

Point: TypeAlias = tuple[float, float | None]
Pixel: TypeAlias = tuple[float, float]

MAX_POINTS: Final = 2000
LOG_DECADES: Final = 2.0  # what spans more, and is positive, is drawn on a logarithmic axis
BINS: Final = 40
SUPERSCRIPTS: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
SUFFIXES: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
LABEL_HEIGHT: Final = 28
LEAST_SPAN: Final = 0.01  # of the values' size: less is not blown up to the whole height


@dataclass(frozen=True, slots=True)
class Size:
    """Width and height in user units; a page scales the chart as a whole."""

    width: int
    height: int


WIDE: Final = Size(1040, 330)
HALF: Final = Size(510, 240)


@dataclass(frozen=True, slots=True)
class Series:
    """A named line. `style` is a class of the page's CSS; `dots` marks every point as well."""

    label: str
    points: Sequence[Point]
    style: Literal["first", "second"] = "first"
    dots: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    """The area between two lines, drawn behind them: points are (x, low, high), and one without either is a gap."""

    label: str
    points: Sequence[tuple[float, float | None, float | None]]
    style: Literal["first", "second"] = "second"

    @property
    def edges(self) -> tuple[list[Point], list[Point]]:
        """Give the lower and the upper line, with a gap in both where one has none."""
        whole = [(x, low, high, _is_drawn(low) and _is_drawn(high)) for x, low, high in self.points]
        return [(x, low if both else None) for x, low, _, both in whole], [
            (x, high if both else None) for x, _, high, both in whole
        ]


# -- points ----------------------------------------------------------------------------------------------------------


def decimate(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """Give at most `limit` of `points` (≥ 7): first, last, lowest and highest stay, and so does every break."""
    if len(points) <= limit:
        return list(points)
    gaps = [index for index, (_, y) in enumerate(points) if not _is_drawn(y)]
    last = len(points) - 1
    buckets = (limit - 3) // 4 if gaps else (limit - 2) // 2
    edges = [1 + (last - 1) * bucket // buckets for bucket in range(buckets + 1)]
    kept = {0, last}
    for low, high in pairwise(edges):
        drawn = [(y, index) for index in range(low, high) if _is_drawn(y := points[index][1])]
        kept |= {min(drawn)[1], max(drawn)[1]} if drawn else set()
    return [points[index] for index in _with_breaks(sorted(kept), gaps)]


def _with_breaks(kept: Sequence[int], gaps: Sequence[int]) -> Iterator[int]:
    """Give the indices, and between two of them the first gap that lies there."""
    for low, high in pairwise(kept):
        yield low
        place = bisect_right(gaps, low)
        if place < len(gaps) and gaps[place] < high:
            yield gaps[place]
    yield kept[-1]


def _is_drawn(y: float | None) -> bool:
    return y is not None and math.isfinite(y)


def drawn_values(points: Iterable[Point]) -> list[float]:
    """Give the values that a chart can show."""
    return [y for _, y in points if y is not None and math.isfinite(y)]


# -- axes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Axis:
    """The range of an axis and where its ticks stand."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def at(self, value: float) -> float:
        """Give the place of `value` from 0 (low) to 1 (high)."""
        if self.log:
            low, high = math.log10(self.low), math.log10(self.high)
            return (math.log10(value) - low) / (high - low)
        return (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)  # halves: the span may overflow

    def label(self, tick: float) -> str:
        if self.log or len(self.ticks) < 2:
            return short(tick, suffix_from=1e3)
        return _tick_text(tick, self.ticks[1] - self.ticks[0], max(map(abs, self.ticks)))


def spans_decades(values: Iterable[float]) -> bool:
    """Tell whether `values` are all positive and more than two decades apart."""
    found = list(values)
    return bool(found) and min(found) > 0 and math.log10(max(found)) - math.log10(min(found)) > LOG_DECADES


def linear_axis(low: float, high: float, count: int, *, whole: bool = False, round_out: bool = True) -> Axis:
    """Give an axis with about `count` ticks on round numbers; `round_out` ends it on ticks."""
    if high / 2 - low / 2 <= 1e-9 * max(abs(low), abs(high)) or high - low < sys.float_info.min * 1e9:
        low, high = _around(high)
    step = _round_step(high / count - low / count)
    step = max(1.0, step) if whole else step
    first, last = math.floor(low / step), math.ceil(high / step)
    if round_out:
        low, high = _bounded(first * step), _bounded(last * step)
    ticks = (_bounded(index * step) for index in range(first, last + 1))
    return Axis(low, high, tuple(tick for tick in dict.fromkeys(ticks) if low <= tick <= high))


def _apart(values: Sequence[float]) -> tuple[float, float]:
    """Give the range of `values`, at least `LEAST_SPAN` of their size unless they are all equal."""
    low, high = min(values), max(values)
    missing = LEAST_SPAN * max(abs(low), abs(high)) - (high - low)
    return (low - missing / 2, high + missing / 2) if low < high and missing > 0 else (low, high)


def _around(value: float) -> tuple[float, float]:
    """Give a range that shows a constant in its middle, zero at one end."""
    if abs(value) < sys.float_info.min * 1e12:
        return 0.0, 1.0
    return min(0.0, _bounded(2 * value)), max(0.0, _bounded(2 * value))


def _bounded(value: float) -> float:
    return max(-sys.float_info.max, min(sys.float_info.max, value))


def _round_step(raw: float) -> float:
    """Give the smallest of 1, 2, 5 × 10^k that is at least `raw`."""
    power = 10.0 ** math.floor(math.log10(raw))
    return next((factor * power for factor in (1, 2, 5) if factor * power >= raw * (1 - 1e-9)), 10 * power)


def log_axis(low: float, high: float) -> Axis:
    """Give a logarithmic axis over positive values, with ticks on powers of ten and, where few, on 2 and 5."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, math.ceil((last - first) / 6))
    factors = (1, 2, 5) if last - first <= LOG_DECADES else (1,)
    powers = range(max(first, -323), min(last, 308) + 1)
    whole = [tick for k in powers for f in (1, 2, 5) if math.isfinite(tick := f * 10.0**k)]
    start = max((tick for tick in whole if tick <= low), default=low)
    end = min((tick for tick in whole if tick >= high), default=high)
    ticks = (f * 10.0**k for k in powers[::every] for f in factors)
    return Axis(start, end, tuple(tick for tick in ticks if start <= tick <= end), log=True)


# -- numbers ---------------------------------------------------------------------------------------------------------


def short(value: float, *, digits: int = 4, suffix_from: float = 1e4) -> str:
    """Write a number for people: four digits, `12.5k`, `3×10⁻⁴`."""
    if value == 0:
        return "0"
    for size, suffix in SUFFIXES:
        if max(size, suffix_from) <= abs(value) < 1e15:
            return f"{value / size:.{digits}g}{suffix}"
    if 1e-3 <= abs(value) < 1e4:
        return f"{value:,.{digits}g}" if abs(value) < 1e3 else f"{value:,.0f}"
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    power = f"10{str(int(exponent)).translate(SUPERSCRIPTS)}"
    return power if mantissa == "1" else f"{mantissa}×{power}"


def _tick_text(tick: float, step: float, largest: float) -> str:
    """Write a tick with as many digits as tell it from its neighbours."""
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    if largest < 1e4 and largest >= 1e-3 and decimals <= 5:
        return f"{tick:,.{decimals}f}"
    return short(tick, digits=max(4, math.floor(math.log10(largest / step)) + 2), suffix_from=1e3)


# -- charts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frame:
    """The plot area: axes, and pixels of values."""

    size: Size
    x: Axis
    y: Axis
    right: int
    left: int = 66
    top: int = 26
    bottom: int = 30

    def pixel(self, x: float, y: float) -> Pixel:
        across, up = self.size.width - self.left - self.right, self.size.height - self.top - self.bottom
        return self.left + across * self.x.at(x), self.size.height - self.bottom - up * self.y.at(y)


def line_chart(
    series: Sequence[Series], *, x_unit: str, y_unit: str, size: Size = HALF, bands: Sequence[Band] = ()
) -> str:
    """Draw the series over one pair of axes, each named at its end; logarithmic where values span two decades.

    Bands lie behind them and widen the axes. Without any drawable point of a series: a sentence in place of the chart.
    """
    shown = [Series(one.label, decimate(one.points), one.style, one.dots) for one in series]
    shown = [one for one in shown if drawn_values(one.points)]
    if not shown:
        return nothing("no value that can be drawn is on record")
    edges = [edge for band in bands for edge in band.edges]
    drawn = [*(one.points for one in shown), *edges]
    values = [y for points in drawn for y in drawn_values(points)]
    xs = [x for points in drawn for x, _ in points]
    tall, broad = size.height // 55, size.width // 95
    y = log_axis(min(values), max(values)) if spans_decades(values) else linear_axis(*_apart(values), tall)
    x = linear_axis(min(xs), max(xs), broad, whole=True, round_out=False)
    frame = Frame(size, x, y, right=92)
    unit = f"{y_unit}, logarithmic" if y.log else y_unit
    body = [
        *_axes(frame, x_unit, unit),
        *(_area(frame, band) for band in bands),
        *(part for one in shown for part in _series(frame, one)),
        *_names(frame, shown),
    ]
    return svg(size, body, f"{', '.join(one.label for one in shown)} by {x_unit}")


def histogram(values: Sequence[float], marks: Sequence[tuple[str, float]], *, unit: str, size: Size = HALF) -> str:
    """Draw how often each value occurs, with a named line at each mark (as median, p95)."""
    if not values:
        return nothing("no value that can be drawn is on record")
    axis = linear_axis(min(values), max(values), BINS)
    width = axis.ticks[1] - axis.ticks[0]
    counts = [0] * (len(axis.ticks) - 1)
    for value in values:
        counts[min(int((value - axis.low) / width), len(counts) - 1)] += 1
    x = Axis(axis.low, axis.high, linear_axis(axis.low, axis.high, size.width // 95, round_out=False).ticks)
    frame = Frame(size, x, linear_axis(0, max(counts), size.height // 60, whole=True), right=46)
    bars = [_bar(frame, axis.ticks[i], axis.ticks[i + 1], count) for i, count in enumerate(counts) if count]
    body = [*_axes(frame, unit, "steps"), *bars]
    body += [part for place, mark in enumerate(marks) for part in _mark(frame, *mark, place)]
    return svg(size, body, f"distribution of {len(values)} values in {unit}")


def _axes(frame: Frame, x_unit: str, y_unit: str) -> Iterator[str]:
    right, base = frame.size.width - frame.right, frame.size.height - frame.bottom
    for tick in frame.y.ticks:
        _, y = frame.pixel(frame.x.low, tick)
        yield f'<line class="grid" x1="{frame.left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield text_at(frame.left - 8, y + 4, frame.y.label(tick), "tick end")
    yield f'<line class="base" x1="{frame.left}" x2="{right}" y1="{base}" y2="{base}"/>'
    for tick in frame.x.ticks:
        x, _ = frame.pixel(tick, frame.y.low)
        yield f'<line class="base" x1="{x:.1f}" x2="{x:.1f}" y1="{base}" y2="{base + 4}"/>'
        yield text_at(x, base + 18, frame.x.label(tick), "tick middle")
    yield text_at(frame.left, 12, y_unit, "tick")
    yield text_at(right + 24, base + 18, x_unit, "tick")


def _series(frame: Frame, series: Series) -> Iterator[str]:
    runs = list(_unbroken(frame, series.points))
    path = "".join(_path(run) for run in runs)
    yield from _holes(frame, series.points)
    fine = " fine" if len(series.points) > frame.size.width // 2 else ""
    yield f'<path class="line {series.style}{fine}" d="{path}"/>'
    if series.dots:
        for (x, y), value in zip((pixel for run in runs for pixel in run), drawn_values(series.points), strict=True):
            title = f"<title>{short(value)}</title>"
            yield f'<circle class="{series.style}" cx="{x:.1f}" cy="{y:.1f}" r="2.6">{title}</circle>'


def _area(frame: Frame, band: Band) -> str:
    low, high = (list(_unbroken(frame, edge)) for edge in band.edges)
    path = "".join(f"{_path([*up, *reversed(down)])}Z" for down, up in zip(low, high, strict=True))
    return f'<path class="band {band.style}" d="{path}"><title>{escape(band.label)}</title></path>'


def _holes(frame: Frame, points: Sequence[Point]) -> Iterator[str]:
    """Mark on the baseline where a value was recorded that is not finite."""
    base = frame.size.height - frame.bottom
    for x in (frame.pixel(x, frame.y.low)[0] for x, y in points if y is not None and not math.isfinite(y)):
        yield f'<line class="hole" x1="{x:.1f}" x2="{x:.1f}" y1="{base - 7}" y2="{base}"/>'


def _unbroken(frame: Frame, points: Sequence[Point]) -> Iterator[list[Pixel]]:
    """Give the stretches of a line between its gaps."""
    stretch: list[Pixel] = []
    for x, y in points:
        if y is not None and math.isfinite(y):
            stretch.append(frame.pixel(x, y))
        elif stretch:
            yield stretch
            stretch = []
    if stretch:
        yield stretch


def _path(stretch: Sequence[Pixel]) -> str:
    """Give the path of one stretch; a lone point is a line of no length, which round ends make a dot."""
    places = [f"{x:.1f} {y:.1f}" for x, y in stretch]
    return f"M{places[0]}L{' '.join(places[1:] or places)}"


def _names(frame: Frame, shown: Sequence[Series]) -> Iterator[str]:
    """Name each series and its last value at its end, apart from each other."""
    ends = []
    for one in shown:
        x, y = next((x, y) for x, y in reversed(one.points) if y is not None and math.isfinite(y))
        ends.append((frame.pixel(x, y)[1], one, y))
    ends.sort(key=lambda end: end[0])
    floor = frame.size.height - frame.bottom - 18 - LABEL_HEIGHT * (len(ends) - 1)
    below = frame.top - 4.0
    for index, (place, one, value) in enumerate(ends):
        y = max(below, min(place, floor + LABEL_HEIGHT * index))
        x = frame.size.width - frame.right + 8
        yield text_at(x, y, one.label, f"name {one.style}")
        yield text_at(x, y + 13, short(value), "tick")
        below = y + LABEL_HEIGHT


def _bar(frame: Frame, low: float, high: float, count: int) -> str:
    (left, top), (right, base) = frame.pixel(low, count), frame.pixel(high, 0)
    return (
        f'<rect class="bar" x="{left + 0.5:.1f}" y="{top:.1f}" width="{max(right - left - 1, 0.5):.1f}"'
        f' height="{max(base - top, 0):.1f}"/>'
    )


def _mark(frame: Frame, label: str, value: float, place: int) -> Iterator[str]:
    x, base = frame.pixel(min(value, frame.x.high), 0)
    y = frame.top - 4 + 15 * place
    left_of = x > frame.size.width * 0.7
    yield f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{base:.1f}"/>'
    yield text_at(x - 5 if left_of else x + 5, y + 8, label, f"name second{' end' if left_of else ''}")


def text_at(x: float, y: float, text: str, style: str) -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def nothing(text: str) -> str:
    return f'<p class="nothing">{escape(text)}</p>'


def svg(size: Size, body: Iterable[str], label: str) -> str:
    box = f"0 0 {size.width} {size.height}"
    return f'<svg viewBox="{box}" role="img" aria-label="{escape(label)}">{"".join(body)}</svg>'
