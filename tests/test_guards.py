import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.facts_tables import result_of_shipped
from trainwright import guards
from trainwright.guards import ExplosionGuard, Policy, RunningMedian
from trainwright.trainable import Direction

NAN, INF = math.nan, math.inf


def best_of(series: list[float], direction: Direction) -> int | None:
    """Give the index of the best, taken in one at a time."""
    best, index = None, None
    for position, value in enumerate(series):
        if guards.improves(value, best, direction=direction):
            best, index = value, position
    return index


@pytest.mark.parametrize(
    ("series", "direction", "expected"),
    [
        ([NAN, 0.9, NAN, 0.5, INF], "min", 3),
        ([NAN, 0.9, NAN, 0.5, -INF], "min", 3),
        ([NAN, NAN], "min", None),
        ([INF, INF], "min", None),
        ([-INF, 0.5, NAN, 0.9, -INF], "max", 3),
        ([-INF, 0.5, INF], "max", 1),
        ([-INF, NAN], "max", None),
        ([0.5, 0.5], "min", 0),
    ],
)
def test_the_best_of_a_series_is_its_best_finite_value(
    series: list[float], direction: Direction, expected: int | None
) -> None:
    assert best_of(series, direction) == expected


@pytest.mark.parametrize(
    ("value", "improves"), [(0.75, True), (0.875, False), (0.9, False), (1.0, False), (1.5, False)]
)
def test_a_gain_of_exactly_min_delta_is_no_improvement(value: float, improves: bool) -> None:
    assert guards.improves(value, 1.0, direction="min", min_delta=0.125) == improves
    assert guards.improves(2.0 - value, 1.0, direction="max", min_delta=0.125) == improves


@pytest.mark.parametrize(
    ("value", "previous", "best", "says"),
    [
        (7.0, 3.5, 3.5, None),
        (7.1, 3.5, 3.5, "validation 7.1 is more than 2 × the previous one, 3.5"),
        (math.nextafter(7.0, 8.0), 3.5, None, "validation 7 is more than 2 × the previous one, 3.5"),
        (5.0, 4.0, 2.0, "validation 5 is more than 2 × the best one, 2"),
        (4.0, 4.0, 2.0, None),
        (100.0, None, None, None),
        (1.0, -1.0, -1.0, None),
        (1.0, 0.0, 0.0, None),
    ],
)
def test_more_than_the_ratio_times_the_previous_or_the_best_diverges_and_exactly_the_ratio_passes(
    value: float, previous: float | None, best: float | None, says: str | None
) -> None:
    assert guards.diverged(value, previous=previous, best=best, ratio=2.0, direction="min") == says


def test_what_is_maximised_and_what_has_no_ratio_never_diverges() -> None:
    assert guards.diverged(100.0, previous=1.0, best=1.0, ratio=2.0, direction="max") is None
    assert guards.diverged(100.0, previous=1.0, best=1.0, ratio=None, direction="min") is None


@pytest.mark.parametrize(
    ("value", "cap", "aborts"),
    [
        (10.31, 10.0, True),
        (10.31, 2 * math.log(50_257), False),
        (25.0, 2 * math.log(50_257), True),
        (10.0, 10.0, False),
        (1e9, None, False),
    ],
)
def test_a_first_validation_above_its_cap_is_told(value: float, cap: float | None, aborts: bool) -> None:
    assert (guards.above_cap(value, cap) is not None) == aborts


@pytest.mark.parametrize(
    ("loss", "norm", "says"),
    [
        (1.0, 1.0, None),
        (NAN, 1.0, "train_loss is nan"),
        (1.0, INF, "grad_norm is inf"),
        (-INF, NAN, "train_loss is -inf and grad_norm is nan"),
    ],
)
def test_a_step_that_is_not_finite_names_what_is_not(loss: float, norm: float, says: str | None) -> None:
    found = guards.not_finite(0, loss, norm)
    assert found == (says and f"step 0: {says}; stopped before the optimizer took the step")


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=60), st.integers(1, 9))
def test_the_running_median_is_the_median_of_the_last_values(values: list[float], window: int) -> None:
    median = RunningMedian(window)
    for count, value in enumerate(values, 1):
        median.add(value)
        last = values[max(0, count - window) : count]
        assert median.values == last
        assert median.value() == statistics.median(last)
        assert median.full == (len(last) == window)


def acts(policy: Policy, norms: list[float], *, max_skips: int = 2) -> list[str | None]:
    guard = ExplosionGuard(policy, ratio=10.0, window=3, max_skips=max_skips)
    return [guard.act(norm, guard.threshold) for norm in norms]


QUIET = [1.0, 1.0, 1.0]


@pytest.mark.parametrize("policy", ["off", "warn", "skip", "abort"])
def test_a_norm_up_to_the_ratio_times_the_median_is_taken(policy: Policy) -> None:
    assert acts(policy, [*QUIET, 10.0, 2.0]) == [None] * 5


@pytest.mark.parametrize(("policy", "action"), [("off", None), ("warn", "warn"), ("skip", "skip"), ("abort", "abort")])
def test_a_norm_above_it_is_met_by_the_policy(policy: Policy, action: str | None) -> None:
    assert acts(policy, [*QUIET, 10.1]) == [None, None, None, action]


@pytest.mark.parametrize("policy", ["warn", "skip", "abort"])
def test_nothing_is_done_before_the_window_is_full(policy: Policy) -> None:
    assert acts(policy, [1.0, 1.0, 1e9]) == [None, None, None]


def test_a_skipped_norm_does_not_count_and_one_that_was_warned_of_does() -> None:
    rise = [*QUIET, 100.0, 100.0, 100.0]
    assert acts("warn", rise) == [None, None, None, "warn", "warn", None]
    assert acts("skip", rise, max_skips=9) == [None, None, None, "skip", "skip", "skip"]


def test_more_skips_than_the_cap_abort() -> None:
    assert acts("skip", [*QUIET, 99.0, 1.0, 99.0, 99.0], max_skips=2)[3:] == ["skip", None, "skip", "abort"]


def test_a_guard_goes_on_from_what_it_remembered() -> None:
    uncut = ExplosionGuard("skip", ratio=10.0, window=3, max_skips=2)
    for norm in (1.0, 2.0, 3.0, 99.0):
        uncut.act(norm, uncut.threshold)
    resumed = ExplosionGuard("skip", ratio=10.0, window=3, max_skips=2)
    resumed.restore(uncut.norms, uncut.skips)
    assert resumed.threshold == uncut.threshold == 20.0
    rest = [5.0, 99.0, 99.0]
    assert [resumed.act(n, resumed.threshold) for n in rest] == [uncut.act(n, uncut.threshold) for n in rest]
    assert resumed.skips == 3


@pytest.mark.parametrize("first", [3.5, 0.1, 7.3, 1e-3])
@pytest.mark.parametrize("factor", [0.5, 1.0, 1.999999, 2.0, 2.000001, 3.0])
@pytest.mark.parametrize("towards", [-math.inf, None, math.inf])
def test_divergence_is_what_its_gate_finds_and_the_cap_too(first: float, factor: float, towards: float | None) -> None:
    last = first * factor if towards is None else math.nextafter(first * factor, towards)
    stopped = guards.diverged(last, previous=first, best=first, ratio=2.0, direction="min") is not None
    rows = {"ordinal": [0, 1], "value": [first, last], "previous": [None, first], "best_before": [None, first]}
    capped = {"ordinal": 0, "value": last, "previous": None, "best_before": None}
    for validations, cap, fails in ((rows, 100.0, stopped), (capped, first, last > first)):
        found = result_of_shipped("GATE-TRAIN-005", validations=validations, config={"first_validation_cap": cap})
        assert found == ("fail" if fails else "pass")
    assert (guards.above_cap(last, first) is not None) == (last > first)
