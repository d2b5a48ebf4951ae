"""Learning rate at a step, in closed form: equal whether or not the run was cut."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from trainwright.errors import InputError

ScheduleKind: TypeAlias = Literal["cosine", "linear", "step", "constant"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule over `total_steps` updates (None: no end is known, which only `step` and `constant` allow).

    Warm-up reaches the peak at update `warmup_steps` - 1; the next holds it, and decay runs from there to
    `minimum_ratio` of the peak at the last.
    A resume with a larger total follows the closed form of the larger total from there on.
    """

    peak: float
    kind: ScheduleKind = "cosine"
    total_steps: int | None = None
    warmup_steps: int = 0
    minimum_ratio: float = 0.1
    milestones: tuple[int, ...] = ()
    factor: float = 0.1

    def __post_init__(self) -> None:
        if self.total_steps is None and self.kind in {"cosine", "linear"}:
            raise InputError(
                f"{self.kind!r} needs a known number of steps; give train.steps, train.tokens or train.epochs beside "
                "the time budget, or choose constant or step"
            )

    def at(self, step: int) -> float:
        """Give the learning rate of update `step`, from 0. Warm-up is linear: update s takes (s + 1) / warm-up."""
        if step < self.warmup_steps:
            return self.peak * ((step + 1) / self.warmup_steps)
        return self.peak * _DECAYS[self.kind](self, step)

    def _progress(self, step: int) -> float:
        last = (self.total_steps or 0) - 1
        return min(1.0, (step - self.warmup_steps) / max(1, last - self.warmup_steps))


def _cosine(schedule: Schedule, step: int) -> float:
    """Loshchilov and Hutter 2017, equation 5, one period."""
    low = schedule.minimum_ratio
    return low + (1 - low) * (1 + math.cos(math.pi * schedule._progress(step))) / 2  # noqa: SLF001  one module


def _linear(schedule: Schedule, step: int) -> float:
    return 1 - (1 - schedule.minimum_ratio) * schedule._progress(step)  # noqa: SLF001  one module


def _step(schedule: Schedule, step: int) -> float:
    return float(schedule.factor ** sum(step >= milestone for milestone in schedule.milestones))


_DECAYS: Mapping[ScheduleKind, Callable[[Schedule, int], float]] = {
    "cosine": _cosine,
    "linear": _linear,
    "step": _step,
    "constant": lambda _schedule, _step: 1.0,
}
