"""What a forecaster reads: the variables of its series by what is known of them when, and windows over them.

Shapes in names: b windows, c steps of context, h of horizon, t = c + h of both; r real variables, k categorical ones.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable by its name. `categories`: a code lies in 0 … categories - 1, 0 for none seen in training."""

    name: str
    categories: int | None = None  # None: a real number


@dataclass(frozen=True, slots=True)
class Inputs:
    """Variables of each kind; in each the reals stand before the categorical ones."""

    static: tuple[Variable, ...]  # one value a series
    known: tuple[Variable, ...]  # over context and horizon, as the calendar
    observed: tuple[Variable, ...]  # over the context only; the first one is the target


class Window(NamedTuple):
    """Windows of series, on the trained scale: float32, codes int64. `weight` is 1 where the target was observed.

    static (b, r) and (b, k) · known (b, t, r) and (b, t, k) · observed (b, c, r) and (b, c, k) · target, weight (b, h)
    """

    static_reals: Tensor
    static_codes: Tensor
    known_reals: Tensor
    known_codes: Tensor
    observed_reals: Tensor  # the target is column 0
    observed_codes: Tensor
    target: Tensor
    weight: Tensor
