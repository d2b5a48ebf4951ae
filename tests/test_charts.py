"""Charts: what is drawn is what was given, at most 2,000 points of it, with a gap where there is no number."""

import math
import re
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.charts import (
    MAX_POINTS,
    Point,
    Series,
    decimate,
    drawn_values,
    histogram,
    line_chart,
    linear_axis,
    log_axis,
    short,
    spans_decades,
)

FINITE = st.floats(allow_nan=False, allow_infinity=False)
MAYBE = st.one_of(st.none(), st.floats(), st.floats(-10, 10))
SVG_PATH = re.compile(r'<path class="line first(?: fine)?" d="([^"]*)"')


def points_of(values: list[float | None]) -> list[Point]:
    return [(float(index), value) for index, value in enumerate(values)]


def is_gap(value: float | None) -> bool:
    return value is None or not math.isfinite(value)


def key(point: Point) -> float:
    return point[0]


def pieces(svg: str) -> int:
    """Count the unbroken stretches of the chart's line."""
    found = SVG_PATH.search(svg)
    assert found
    return found[1].count("M")


@given(st.lists(FINITE, min_size=1, max_size=200), st.integers(7, 40))
def test_decimation_keeps_first_last_lowest_and_highest_and_the_order(values: list[float], limit: int) -> None:
    points = points_of([*values])
    kept = decimate(points, limit)
    assert len(kept) <= limit
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert (min(drawn_values(kept)), max(drawn_values(kept))) == (min(values), max(values))
    assert kept == sorted(kept, key=key)
    assert set(kept) <= set(points)


@given(st.lists(MAYBE, min_size=1, max_size=200), st.integers(7, 40))
def test_decimation_with_gaps_keeps_the_extremes_and_the_limit(values: list[float | None], limit: int) -> None:
    points = points_of(values)
    kept = decimate(points, limit)
    assert len(kept) <= limit
    assert (kept[0][0], kept[-1][0]) == (0, len(values) - 1)
    finite = drawn_values(points)
    assert not finite or (min(finite), max(finite)) == (min(drawn_values(kept)), max(drawn_values(kept)))


@given(st.lists(MAYBE, min_size=1, max_size=200), st.integers(7, 40))
def test_decimation_never_joins_two_points_across_a_gap(values: list[float | None], limit: int) -> None:
    for (left, y_left), (right, y_right) in pairwise(decimate(points_of(values), limit)):
        if not is_gap(y_left) and not is_gap(y_right):
            assert not any(map(is_gap, values[int(left) : int(right) + 1]))


def test_a_short_series_is_drawn_as_it_is() -> None:
    points = points_of([1.0, None, 3.0])
    assert decimate(points) == points


def test_a_hundred_thousand_steps_draw_at_most_two_thousand_points() -> None:
    svg = line_chart([Series("loss", points_of([math.sin(i) for i in range(100_000)]))], x_unit="step", y_unit="loss")
    found = SVG_PATH.search(svg)
    assert found
    assert len(re.findall(r"[\d.]+ [\d.]+", found[1])) <= MAX_POINTS


@pytest.mark.parametrize("missing", [None, math.nan, math.inf, -math.inf])
def test_the_line_breaks_where_a_value_is_missing_or_not_finite(missing: float | None) -> None:
    svg = line_chart([Series("loss", points_of([1.0, 2.0, missing, 3.0, 4.0]))], x_unit="step", y_unit="loss")
    assert pieces(svg) == 2
    assert ("hole" in svg) == (missing is not None)


def test_a_lone_point_between_gaps_is_drawn_as_a_dot() -> None:
    svg = line_chart([Series("loss", points_of([None, 1.0, None, 2.0]))], x_unit="step", y_unit="loss")
    found = SVG_PATH.search(svg)
    assert found
    for stretch in found[1].split("M")[1:]:
        start, end = stretch.split("L")
        assert start == end


def test_a_series_without_a_number_says_so_in_place_of_a_chart() -> None:
    svg = line_chart([Series("loss", points_of([None, math.nan]))], x_unit="step", y_unit="loss")
    assert "<svg" not in svg
    assert "no value that can be drawn" in svg
    assert "no value that can be drawn" in histogram([], [], unit="ms")


@given(st.lists(st.lists(st.one_of(st.none(), st.floats()), max_size=30), max_size=3))
def test_a_chart_of_any_numbers_is_well_formed_and_holds_no_number_that_is_not_one(
    lists: list[list[float | None]],
) -> None:
    svg = line_chart([Series("a", points_of(values)) for values in lists], x_unit="step", y_unit="1")
    ET.fromstring(svg)
    assert not re.search(r'"[^"]*\b(nan|inf)\b[^"]*"', svg)


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=50))
def test_a_histogram_of_any_times_is_well_formed(values: list[float]) -> None:
    svg = histogram(values, [("median", values[0])], unit="ms")
    ET.fromstring(svg)
    assert 'class="bar"' in svg


@given(FINITE, FINITE, st.integers(2, 12))
def test_a_linear_axis_holds_its_values_and_a_handful_of_ticks(one: float, other: float, count: int) -> None:
    low, high = sorted((one, other))
    axis = linear_axis(low, high, count)
    assert -1e-6 <= axis.at(low) <= axis.at(high) <= 1 + 1e-6
    assert 1 <= len(axis.ticks) <= count + 3
    assert list(axis.ticks) == sorted(axis.ticks)


def test_ticks_stand_on_round_numbers_and_read_plainly() -> None:
    axis = linear_axis(0, 93, 5)
    assert [axis.label(tick) for tick in axis.ticks] == ["0", "20", "40", "60", "80", "100"]
    rates = linear_axis(0, 6e-4, 4)
    assert [rates.label(tick) for tick in rates.ticks] == ["0", "2×10⁻⁴", "4×10⁻⁴", "6×10⁻⁴"]


@pytest.mark.parametrize(
    ("low", "high"), [(9.999e-4, 1e-3), (1e6, 1e6 + 100), (0.0, 3e-7), (6.1234, 6.1239), (-5e7, 5e7)]
)
def test_no_two_ticks_read_the_same(low: float, high: float) -> None:
    axis = linear_axis(low, high, 5)
    labels = [axis.label(tick) for tick in axis.ticks]
    assert len(set(labels)) == len(labels) > 2


def test_a_tiny_change_is_not_blown_up_to_the_whole_height() -> None:
    svg = line_chart([Series("lr", [(0, 1e-3), (1, 0.9999e-3)])], x_unit="step", y_unit="lr")
    found = SVG_PATH.search(svg)
    assert found
    heights = [float(place.split()[1]) for place in re.split("[ML]", found[1])[1:]]
    assert abs(heights[0] - heights[1]) < 10


def test_a_constant_is_drawn_in_the_middle() -> None:
    assert linear_axis(0.001, 0.001, 4).at(0.001) == pytest.approx(0.5)


@given(st.floats(5e-324, 1e308), st.floats(5e-324, 1e308))
def test_a_logarithmic_axis_holds_its_values(one: float, other: float) -> None:
    low, high = sorted((one, other))
    if spans_decades([low, high]):
        axis = log_axis(low, high)
        assert -1e-9 <= axis.at(low) < axis.at(high) <= 1 + 1e-9
        assert axis.ticks


def test_only_positive_values_more_than_two_decades_apart_are_drawn_logarithmically() -> None:
    assert spans_decades([0.1, 11.0])
    assert not spans_decades([0.1, 10.0])
    assert not spans_decades([0.0, 1000.0])
    assert not spans_decades([])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (37.5402, "37.54"),
        (12_500.0, "12.5k"),
        (3e-4, "3×10⁻⁴"),
        (1e-4, "10⁻⁴"),
        (1234.0, "1,234"),
        (-2e6, "-2M"),
    ],
)
def test_numbers_are_written_for_people(value: float, text: str) -> None:
    assert short(value) == text


def test_labels_are_escaped() -> None:
    svg = line_chart([Series("<b>", [(0, 1.0), (1, 2.0)])], x_unit="step", y_unit="a & b")
    assert "<b>" not in svg
    ET.fromstring(svg)
