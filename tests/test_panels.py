"""Panels: what was given is drawn, a gap is a gap, and nothing is drawn of no number."""

import math
import re
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.illustrations import Band, Bars, Grid, Line, Lines, Panel
from trainwright.panels import MOST_COLUMNS, MOST_ROWS, bar_chart, draw, heat_grid

NUMBER = st.one_of(st.none(), st.floats(), st.floats(-10, 10))
TOLD: dict[str, Any] = {"title": "a", "about": "b", "x_unit": "x & x", "y_unit": "<y>"}


def grid(rows: list[list[float | None]], x_first: int = 0, y_first: int = 0) -> Grid:
    return Grid(**TOLD, unit="attention", rows=rows, x_first=x_first, y_first=y_first)


def lines(y: list[float | None], low: list[float | None], high: list[float | None]) -> Lines:
    x = [float(place) for place in range(len(y))]
    return Lines(**TOLD, lines=[Line("median", x, y)], bands=[Band("10-90", x, low, high)])


def cells(svg: str) -> list[tuple[float, float, float]]:
    found = re.findall(r'class="cell" x="([\d.-]+)" y="([\d.-]+)" .*?fill-opacity="([\d.]+)"', svg)
    return [(float(x), float(y), float(strength)) for x, y, strength in found]


@given(st.lists(st.tuples(NUMBER, NUMBER, NUMBER), max_size=20))
def test_lines_with_a_band_of_any_numbers_are_well_formed(rows: list[tuple[float | None, ...]]) -> None:
    y, low, high = ([row[part] for row in rows] for part in range(3))
    assert_is_well_formed(lines(y, low, high))


@given(st.lists(NUMBER, max_size=20))
def test_bars_of_any_numbers_are_well_formed(values: list[float | None]) -> None:
    assert_is_well_formed(Bars(title="a", about="b", unit="<&>", labels=["<b>"] * len(values), values=values))


@given(st.integers(0, 4).flatmap(lambda width: st.lists(st.lists(NUMBER, min_size=width, max_size=width), max_size=4)))
def test_a_grid_of_any_numbers_assert_is_well_formed(rows: list[list[float | None]]) -> None:
    assert_is_well_formed(grid(rows, x_first=-3, y_first=1))


def assert_is_well_formed(panel: Panel) -> None:
    svg = draw(panel)
    ET.fromstring(svg)
    assert not re.search(r'"[^"]*\b(nan|inf)\b[^"]*"', svg)


def test_a_band_is_one_area_between_its_lines_and_breaks_at_a_gap() -> None:
    area = re.search(r'class="band second" d="([^"]*)"', draw(lines([0.0] * 5, [-1.0] * 5, [1.0] * 5)))
    assert area
    assert area[1].count("M") == area[1].count("Z") == 1
    assert len(re.findall(r"[\d.]+ [\d.]+", area[1])) == 10, "five places above and five below"
    broken = re.search(r'class="band second" d="([^"]*)"', draw(lines([0.0] * 5, [-1, -1, None, -1, -1], [1.0] * 5)))
    assert broken
    assert broken[1].count("M") == broken[1].count("Z") == 2


def test_a_band_beyond_its_line_widens_the_axis() -> None:
    assert ">100<" in draw(lines([1.0, 2.0], [-100.0, -100.0], [100.0, 100.0]))


def test_bars_begin_at_zero_are_as_long_as_their_values_and_say_where_there_is_none() -> None:
    svg = bar_chart(["one", "two", "none", "minus"], [1.0, 2.0, None, -1.0], unit="weight")
    drawn = re.findall(r'<rect class="bar" x="([\d.]+)" y="\d+" width="([\d.]+)"', svg)
    [(zero, one), (also_zero, two), (left, minus)] = [(float(x), float(width)) for x, width in drawn]
    assert zero == also_zero == pytest.approx(left + minus, abs=0.11)
    assert two == pytest.approx(2 * one, abs=0.11)
    assert svg.count("no number") == 1


def test_a_name_that_is_too_long_is_cut() -> None:
    assert ">a_very_long_name_of_a_v…<" in bar_chart(["a_very_long_name_of_a_variable"], [1.0], unit="weight")


def test_the_largest_cell_is_the_strongest_the_first_row_stands_on_top_and_a_gap_is_left_out() -> None:
    found = cells(heat_grid(grid([[0.0, 1.0], [None, 0.5]])))
    assert [strength for *_, strength in found] == [0.04, 1.0, 0.52]
    (left, top, _), (right, also_top, _), (also_right, below, _) = found
    assert left < right == also_right
    assert top == also_top < below


def test_a_large_grid_is_drawn_as_means_of_blocks_and_says_so() -> None:
    row: list[float | None] = [float(column // 2 % 2) for column in range(2 * MOST_COLUMNS)]
    svg = heat_grid(grid([row] * 3 * MOST_ROWS))
    found = cells(svg)
    assert len(found) == MOST_ROWS * MOST_COLUMNS
    assert {strength for *_, strength in found} == {0.04, 1.0}
    assert "means of 3 × 2" in svg
    assert "means" not in heat_grid(grid([[1.0] * MOST_COLUMNS] * MOST_ROWS))


@pytest.mark.parametrize("missing", [None, math.nan])
def test_a_panel_without_a_number_says_so_in_place_of_a_chart(missing: float | None) -> None:
    empty = Bars(title="a", about="b", unit="c", labels=["d"], values=[missing])
    for panel in (lines([missing], [missing], [missing]), empty, grid([[missing]]), grid([])):
        assert "no value that can be drawn" in draw(panel)
