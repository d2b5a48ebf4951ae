import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.errors import InputError
from trainwright.schedules import Schedule, ScheduleKind

KINDS: tuple[ScheduleKind, ...] = ("cosine", "linear", "step", "constant")
SCHEDULES = st.builds(
    Schedule,
    peak=st.floats(1e-12, 1e3),
    kind=st.sampled_from(KINDS),
    total_steps=st.integers(1, 1000),
    warmup_steps=st.integers(0, 1200),
    minimum_ratio=st.floats(0.0, 1.0),
    milestones=st.lists(st.integers(0, 1000), max_size=3).map(tuple),
    factor=st.floats(1e-3, 1.0),
)


@given(SCHEDULES, st.integers(0, 1500))
def test_a_rate_lies_between_zero_and_the_peak(schedule: Schedule, step: int) -> None:
    assert 0.0 <= schedule.at(step) <= schedule.peak


@given(SCHEDULES)
def test_a_rate_never_rises_after_warm_up_nor_falls_within_it(schedule: Schedule) -> None:
    warm = [schedule.at(step) for step in range(min(50, schedule.warmup_steps))]
    assert warm == sorted(warm)
    after = [schedule.at(schedule.warmup_steps + step) for step in range(50)]
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in pairwise(after))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("cosine", [1.0, 0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2, 0.55, 0.1 + 0.9 * (1 - math.sqrt(0.5)) / 2, 0.1]),
        ("linear", [1.0, 0.775, 0.55, 0.325, 0.1]),
        ("step", [1.0, 1.0, 0.5, 0.5, 0.25]),
        ("constant", [1.0, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_the_rate_of_a_step_is_its_closed_form(kind: ScheduleKind, expected: list[float]) -> None:
    schedule = Schedule(2.0, kind, total_steps=5, milestones=(2, 4), factor=0.5)
    assert [schedule.at(step) for step in range(5)] == pytest.approx([2 * ratio for ratio in expected])


@pytest.mark.parametrize("kind", KINDS)
def test_without_warm_up_the_first_update_takes_the_peak(kind: ScheduleKind) -> None:
    assert Schedule(0.5, kind, total_steps=10).at(0) == 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_warm_up_rises_in_equal_parts_to_the_peak_and_the_last_update_takes_the_minimum(kind: ScheduleKind) -> None:
    schedule = Schedule(1.0, kind, total_steps=10, warmup_steps=4)
    assert [schedule.at(step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    if kind in {"cosine", "linear"}:
        assert schedule.at(9) == pytest.approx(0.1)
        assert schedule.at(1000) == schedule.at(9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("warmup", [10, 11, 100])
def test_a_warm_up_as_long_as_the_run_or_longer_only_rises(kind: ScheduleKind, warmup: int) -> None:
    schedule = Schedule(1.0, kind, total_steps=10, warmup_steps=warmup)
    assert [schedule.at(step) for step in range(10)] == [(step + 1) / warmup for step in range(10)]


def test_a_milestone_holds_from_its_own_step_on_wherever_the_run_was_cut() -> None:
    schedule = Schedule(1.0, "step", milestones=(100,), factor=0.1)
    assert (schedule.at(99), schedule.at(100)) == (1.0, 0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_with_a_larger_total_the_closed_form_of_the_larger_total_holds_from_there_on(kind: ScheduleKind) -> None:
    small, large = (Schedule(1.0, kind, total_steps=total, warmup_steps=5) for total in (20, 40))
    assert [small.at(step) for step in range(5)] == [large.at(step) for step in range(5)]
    if kind in {"cosine", "linear"}:
        assert large.at(19) > small.at(19)
        assert large.at(39) == pytest.approx(small.at(19))


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_a_decay_to_an_end_needs_an_end(kind: ScheduleKind) -> None:
    with pytest.raises(InputError, match=f"'{kind}' needs a known number of steps; give train.steps"):
        Schedule(1.0, kind)
    Schedule(1.0, "constant")
    Schedule(1.0, "step")
