"""Columns that gates against lies rest on: computed from rows, and true of every run that the loop makes."""

import math
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.facts_tables import result_of_shipped
from trainwright.budget import LoopSettings
from trainwright.config import EarlyStoppingSection
from trainwright.contract.judge import Result
from trainwright.contract.validation_facts import columns_over_steps, in_order
from trainwright.loopstate import LoopState
from trainwright.metrics import ValidationRow
from trainwright.schedules import Schedule
from trainwright.trainable import Validation

LOSSES = st.floats(0.5, 10.0)
ERRORS = st.floats(0.0, 1.0)


def rows_of(
    noted: list[tuple[float, float | None]], stopping: EarlyStoppingSection | None = None, every: int = 1
) -> list[ValidationRow]:
    """Let the loop's state take validations in (value, standard error), and give their rows."""
    state, rows = LoopState(), []
    told = LoopSettings(schedule=Schedule(1e-3, "constant"), early_stopping=stopping, divergence_ratio=None)
    for number, (value, error) in enumerate(noted):
        state.step = number * every
        taken = state.note_validation(Validation("val_loss", value, 4, error), "min", told)
        rows.append(state.row(taken, epoch=0, checkpoint="", optimizer_sha256="", seconds=0.0))
    return rows


def steps(losses: list[float], first: int = 0) -> pa.Table:
    return pa.table({"step": pa.array(range(first, first + len(losses))), "train_loss": pa.array(losses, pa.float64())})


def columns(rows: list[ValidationRow], of: pa.Table) -> dict[str, list[Any]]:
    return {name: values.to_pylist() for name, values in columns_over_steps(rows, of).items()}


def noise(rows: list[ValidationRow]) -> Result:
    names = ("n", "value", "standard_error", "patience")
    table = {name: [getattr(row, name) for row in rows] for name in names}
    return result_of_shipped("GATE-TRAIN-NOISE", validations={**table, **columns(rows, steps([]))})


def test_a_value_is_held_against_the_finite_ones_before_it() -> None:
    found = {name: values.to_pylist() for name, values in in_order([3.0, math.nan, 4.0, 2.0, math.inf, 5.0]).items()}
    assert found["ordinal"] == [0, 1, 2, 3, 4, 5]
    assert found["previous"] == [None, 3.0, 3.0, 4.0, 2.0, 2.0]
    assert found["best_before"] == [None, 3.0, 3.0, 3.0, 2.0, 2.0]


def test_each_validation_is_told_the_lowest_loss_of_the_steps_since_the_one_before() -> None:
    rows = rows_of([(4.0, None)] * 4, every=3)
    found = columns(rows, steps([8.0, 7.0, math.nan, 6.0, math.inf, 6.5, math.nan]))
    assert found["steps_since"] == [0, 3, 3, 1]
    assert found["train_loss_min"] == [None, 7.0, 6.0, None]


def test_the_rows_of_a_run_that_goes_on_from_another_begin_where_it_began() -> None:
    found = columns(rows_of([(4.0, None)] * 3, every=10)[1:], steps([5.0, 4.0, 3.0], first=8))
    assert (found["steps_since"], found["train_loss_min"]) == ([2, 1], [4.0, 3.0])


def test_rows_that_stand_out_of_order_are_counted_by_their_steps() -> None:
    table = pa.table({"step": [5, 0, 4, 1], "train_loss": [1.0, 9.0, 2.0, 8.0]})
    found = columns(rows_of([(4.0, None)] * 3, every=2)[1:], table)
    assert (found["steps_since"], found["train_loss_min"]) == ([2, 0], [8.0, None])


def test_patience_is_held_against_the_value_where_it_was_last_reset() -> None:
    rows = rows_of([(4.0, 0.125), (3.875, 0.125), (3.5, 0.125), (3.4, 0.125)])
    assert [row.patience for row in rows] == [0, 1, 0, 1]
    assert columns(rows, steps([]))["patience_reference"] == [None, 4.0, 4.0, 3.5]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(LOSSES, ERRORS), min_size=1, max_size=6))
def test_no_run_of_the_loop_breaks_the_gate_about_noise(noted: list[tuple[float, float | None]]) -> None:
    assert noise(rows_of(noted)) == "pass"
    assert noise(rows_of([(value, None) for value, _ in noted])) == "pass"


def test_a_run_that_counts_noise_as_a_gain_breaks_the_gate_about_noise() -> None:
    eager = EarlyStoppingSection(patience=9, standard_errors=0.0)
    assert noise(rows_of([(4.0, 0.1), (3.9, 0.1)], eager)) == "fail"
    assert noise(rows_of([(4.0, 0.1), (3.7, 0.1)], eager)) == "pass"


def test_a_steep_loss_is_no_leak_and_a_validation_that_was_learned_by_heart_is_one() -> None:
    steep = steps([8.0 * 0.97**step for step in range(60)])
    for value, expected in ((8.0 * 0.97**60, "pass"), (0.8, "fail")):
        rows = rows_of([(8.0, 0.05), (value, 0.05)], every=60)
        table = {"value": [8.0, value], "standard_error": [0.05, 0.05], **columns(rows, steep)}
        assert result_of_shipped("GATE-TRAIN-LEAK", validations=table) == expected
