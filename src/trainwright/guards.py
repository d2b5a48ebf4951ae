"""Stop conditions that act at once. Each is a function of numbers, so that gates can be held against the same cases."""

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from typing import Literal, TypeAlias

from trainwright.trainable import Direction

Action: TypeAlias = Literal["warn", "skip", "abort"]
Policy: TypeAlias = Literal["off"] | Action


def not_finite(step: int, loss: float, gradient_norm: float) -> str | None:
    """Say what is not finite in a step; the optimizer must not take it."""
    numbers = (("train_loss", loss), ("grad_norm", gradient_norm))
    bad = [f"{name} is {value}" for name, value in numbers if not math.isfinite(value)]
    if not bad:
        return None
    return f"step {step}: {' and '.join(bad)}; stopped before the optimizer took the step"


def diverged(
    value: float, *, previous: float | None, best: float | None, ratio: float | None, direction: Direction
) -> str | None:
    """Say that a validation diverged: more than `ratio` × the previous or the best. Exactly the ratio passes.

    No ratio: nothing diverges. A ratio says nothing about values that are maximised, zero or negative: those never
    diverge here.
    """
    if direction != "min" or ratio is None:
        return None
    for name, reference in (("previous", previous), ("best", best)):
        if reference is not None and reference > 0 and value > ratio * reference:
            return f"validation {value:.6g} is more than {ratio:g} × the {name} one, {reference:.6g}"
    return None


def above_cap(value: float, cap: float | None) -> str | None:
    """Say that the first validation is above its cap."""
    if cap is not None and value > cap:
        return f"first validation {value:.6g} is above its cap, {cap:.6g}"
    return None


def improves(value: float, best: float | None, *, direction: Direction, min_delta: float = 0.0) -> bool:
    """Tell whether `value` is better than `best` by more than `min_delta`; a value that is not finite never is."""
    if not math.isfinite(value):
        return False
    if best is None:
        return True
    gain = best - value if direction == "min" else value - best
    return gain > min_delta


class RunningMedian:
    """The median of the last `window` values, O(log window) to search and O(window) to move a value."""

    def __init__(self, window: int, values: Sequence[float] = ()) -> None:
        self._window = window
        self._values: deque[float] = deque()
        self._ordered: list[float] = []
        for value in values:
            self.add(value)

    def add(self, value: float) -> None:
        if len(self._values) == self._window:
            oldest = self._values.popleft()
            del self._ordered[bisect_left(self._ordered, oldest)]
        self._values.append(value)
        insort(self._ordered, value)

    @property
    def values(self) -> list[float]:
        return list(self._values)

    @property
    def full(self) -> bool:
        return len(self._values) == self._window

    def value(self) -> float:
        middle = len(self._ordered) // 2
        return self._ordered[middle] if len(self._ordered) % 2 else sum(self._ordered[middle - 1 : middle + 1]) / 2


class ExplosionGuard:
    """Holds each gradient norm against `ratio` × the running median of those that were taken.

    It acts once the window is full, and at the start of a run not at all: the first norms set the scale.
    """

    def __init__(self, policy: Policy, *, ratio: float, window: int, max_skips: int) -> None:
        self._policy = policy
        self._ratio = ratio
        self._max_skips = max_skips
        self._median = RunningMedian(window)
        self.skips = 0

    def restore(self, norms: Sequence[float], skips: int) -> None:
        for norm in norms:
            self._median.add(norm)
        self.skips = skips

    @property
    def norms(self) -> list[float]:
        return self._median.values

    @property
    def threshold(self) -> float | None:
        """Give the norm above which the policy acts, or None while it does not."""
        return self._ratio * self._median.value() if self._policy != "off" and self._median.full else None

    def act(self, norm: float, threshold: float | None) -> Action | None:
        """Decide on one finite norm by the threshold of its step, and remember it when the step is taken."""
        if self._policy == "off":
            return None
        if threshold is None or norm <= threshold:
            self._median.add(norm)
            return None
        if self._policy == "skip":
            self.skips += 1
            return "abort" if self.skips > self._max_skips else "skip"
        if self._policy == "warn":
            self._median.add(norm)
        return self._policy
