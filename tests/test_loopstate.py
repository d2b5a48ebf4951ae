import math
from typing import Any

import msgspec
import pytest

from trainwright.budget import LoopSettings
from trainwright.config import EarlyStoppingSection
from trainwright.loopstate import Ending, LoopState, Noted
from trainwright.schedules import Schedule
from trainwright.trainable import Direction, Validation

GPT2_CAP = 2 * math.log(50_257)


def settings(**changes: Any) -> LoopSettings:
    return LoopSettings(schedule=Schedule(1e-3, "constant"), **changes)


def stopping(patience: int, min_delta: float = 0.0, min_validations: int = 1) -> LoopSettings:
    section = EarlyStoppingSection(patience=patience, min_delta=min_delta, min_validations=min_validations)
    return settings(early_stopping=section, divergence_ratio=None)


def note(
    state: LoopState, value: float, told: LoopSettings, direction: Direction = "min", error: float | None = None
) -> Noted:
    return state.note_validation(Validation("val_loss", value, 4, error), direction, told)


def endings(told: LoopSettings, *values: float, direction: Direction = "min") -> list[str | None]:
    """Give the outcome after each validation, up to the one that ends the run."""
    state = LoopState()
    found: list[str | None] = []
    for value in values:
        note(state, value, told, direction)
        found.append(state.ending.outcome if state.ending else None)
        if state.ending:
            break
    return found


@pytest.mark.parametrize(
    ("values", "direction", "best", "flags"),
    [
        ([math.nan, 0.9, math.nan, 0.5, math.inf], "min", 0.5, [False, True, False, True, False]),
        ([math.nan, math.nan], "min", None, [False, False]),
        ([-math.inf, 0.5, math.nan, 0.9, -math.inf], "max", 0.9, [False, True, False, True, False]),
    ],
)
def test_the_best_is_the_best_finite_validation(
    values: list[float], direction: Direction, best: float | None, flags: list[bool]
) -> None:
    state = LoopState()
    assert [note(state, value, settings(), direction).is_best for value in values] == flags
    assert state.best == best


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_validation_that_is_not_finite_aborts(value: float) -> None:
    assert endings(settings(), 1.0, value) == [None, "aborted"]


@pytest.mark.parametrize(("last", "ending"), [(7.0, None), (7.1, "aborted")])
def test_a_trace_diverges_beyond_twice_the_previous_and_not_at_it(last: float, ending: str | None) -> None:
    assert endings(settings(), 3.5, last) == [None, ending]


def test_a_trace_that_doubles_in_small_steps_diverges_from_its_best() -> None:
    assert endings(settings(), 2.0, 3.0, 4.0, 4.5) == [None, None, None, "aborted"]
    assert endings(settings(divergence_ratio=None), 2.0, 30.0) == [None, None]


@pytest.mark.parametrize(
    ("first", "cap", "ending"),
    [(10.31, 10.0, "aborted"), (10.31, GPT2_CAP, None), (25.0, GPT2_CAP, "aborted"), (25.0, None, None)],
)
def test_the_first_validation_is_held_against_its_cap(first: float, cap: float | None, ending: str | None) -> None:
    assert endings(settings(first_validation_cap=cap), first) == [ending]


def test_later_validations_are_not_held_against_the_cap_of_the_first() -> None:
    assert endings(settings(first_validation_cap=10.0), 9.0, 11.0) == [None, None]


def test_four_rising_validations_stop_a_run_of_patience_three() -> None:
    assert endings(stopping(3), 1.0, 1.1, 1.2, 1.3) == [None, None, None, "done"]


def test_patience_counts_validations_and_not_steps() -> None:
    state, told = LoopState(), stopping(3)
    for value in (1.0, 1.1, 1.2):
        for step in range(1000):
            state.note_step(step, items=1, loss=1.0, norm=1.0)
        note(state, value, told)
    assert (state.patience, state.ending) == (2, None)


def test_a_gain_of_min_delta_or_less_is_no_improvement_however_often_it_comes() -> None:
    told = stopping(3, min_delta=0.125)
    assert endings(told, 1.0, 0.875, 1.0, 0.9375) == [None, None, None, "done"]
    assert endings(told, 1.0, 0.9375, 0.8125, 0.9375, 0.8125, 0.625) == [None] * 6


def test_a_small_gain_is_still_the_best_and_its_checkpoint_is_kept() -> None:
    state, told = LoopState(), stopping(3, min_delta=0.125)
    assert [note(state, value, told).is_best for value in (1.0, 0.9375)] == [True, True]
    assert (state.best, state.patience, state.patience_reference) == (0.9375, 1, 1.0)


@pytest.mark.parametrize("told", [settings(), stopping(9)])
@pytest.mark.parametrize(
    ("second", "direction", "patience"), [(0.75, "min", 1), (0.74, "min", 0), (1.25, "max", 1), (1.26, "max", 0)]
)
def test_patience_is_reset_only_beyond_two_standard_errors(
    told: LoopSettings, second: float, direction: Direction, patience: int
) -> None:
    state = LoopState()
    note(state, 1.0, told, direction, 0.125)
    noted = note(state, second, told, direction, 0.125)
    assert (state.patience, noted.is_best, state.best) == (patience, True, second)


def test_how_many_standard_errors_count_is_configured_and_min_delta_holds_beside_them() -> None:
    state = LoopState()
    told = settings(early_stopping=EarlyStoppingSection(patience=9, standard_errors=0.5, min_delta=0.25))
    for value, error, patience in [(2.0, 0.125, 0), (1.75, 0.125, 1), (1.7, 0.125, 0), (1.3, 1.0, 1), (1.19, 1.0, 0)]:
        note(state, value, told, error=error)
        assert state.patience == patience, value


def test_a_run_does_not_stop_before_its_least_number_of_validations() -> None:
    assert endings(stopping(1, min_validations=4), 1.0, 1.1, 1.2, 1.3) == [None, None, None, "done"]


def test_where_more_is_better_a_fall_uses_up_the_patience() -> None:
    assert endings(stopping(2), 1.0, 2.0, 1.5, 1.5, direction="max") == [None, None, None, "done"]


def test_patience_and_all_else_survive_a_checkpoint() -> None:
    uncut, told = LoopState(norms=[1.0, 2.5], skips=1, best_checkpoint="step-00000002.a1"), stopping(3)
    uncut.note_step(0, items=7, loss=1.5, norm=2.0)
    for value in (1.0, 1.1, 1.2):
        note(uncut, value, told)
    uncut.note_step(1, items=7, loss=0.1, norm=0.3)
    saved = msgspec.json.decode(msgspec.json.encode(msgspec.to_builtins(uncut)))
    resumed = msgspec.convert(saved, LoopState)
    assert resumed == uncut
    assert resumed.patience == 2
    note(resumed, 1.3, told)
    note(uncut, 1.3, told)
    assert resumed == uncut
    assert resumed.ending == Ending("done", "early stop: no gain beyond 0 and 2 standard errors in 3 validations")
    again = msgspec.convert(msgspec.to_builtins(resumed), LoopState)
    assert again.ending == resumed.ending


def test_a_validation_tells_what_the_steps_since_the_last_one_came_to() -> None:
    state = LoopState()
    state.note_step(0, items=1, loss=4.0, norm=1.0)
    state.note_step(1, items=3, loss=2.0, norm=3.0)
    state.note_step(2, items=9, loss=math.nan, norm=9.0)
    first, second = note(state, 1.0, settings()), note(state, 1.0, settings())
    assert (first.train_loss_mean, first.grad_norm_max) == (2.5, 3.0)
    assert (second.train_loss_mean, second.grad_norm_max) == (None, None)
    assert (state.step, state.items_seen, state.validated_at) == (3, 13, 3)


def test_two_states_share_no_list() -> None:
    LoopState().norms.append(1.0)
    assert LoopState().norms == []


def test_the_row_of_a_validation_holds_what_was_noted() -> None:
    state = LoopState()
    state.note_step(0, items=5, loss=2.0, norm=1.0)
    row = state.row(note(state, 1.25, settings()), epoch=1, checkpoint="c", optimizer_sha256="ab", seconds=0.5)
    assert (row.step, row.epoch, row.metric, row.value, row.n, row.tokens_seen) == (1, 1, "val_loss", 1.25, 4, 5)
    assert (row.best, row.is_best, row.patience, row.train_loss_mean, row.checkpoint) == (1.25, True, 0, 2.0, "c")
