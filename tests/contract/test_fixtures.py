"""Fixtures as tables: what a contract gives of a run, in the shape in which a run's own facts are judged."""

from typing import Any

import pytest

from trainwright.contract.fixtures import facts_of_fixture
from trainwright.errors import InputError


def test_a_single_value_fills_its_column() -> None:
    table = facts_of_fixture({"steps": {"step": [1, 2], "lr": 0.5, "kind": "a"}})["steps"]
    assert table.to_pydict() == {"step": [1, 2], "lr": [0.5, 0.5], "kind": ["a", "a"]}


def test_whole_numbers_stand_among_floats() -> None:
    assert facts_of_fixture({"steps": {"lr": [1, 0.5, None]}})["steps"].to_pydict() == {"lr": [1.0, 0.5, None]}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"wall_ms": [1.0, 2.0], "step": [1, 2, 3]}, "table steps: columns of 2 and 3 values; give them one length"),
        ({"wall_ms": [1.0, "two"]}, "table steps: a column mixes kinds of values: "),
    ],
)
def test_columns_of_unequal_length_or_mixed_kinds_are_refused(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        facts_of_fixture({"steps": columns})
