"""Columns of the table `validations` that rest on other rows: the steps before each, and the validations before it."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from trainwright.metrics import ValidationRow


def in_order(values: Sequence[float]) -> dict[str, pa.Array]:
    """Give ordinal (from 0), previous and best_before: the finite value before, and the lowest finite one before."""
    earlier = list(_before(values))
    return {
        "ordinal": pa.array(range(len(values)), pa.int64()),
        "previous": pa.array([previous for previous, _ in earlier], pa.float64()),
        "best_before": pa.array([best for _, best in earlier], pa.float64()),
    }


def _before(values: Iterable[float]) -> Iterator[tuple[float | None, float | None]]:
    previous: float | None = None
    best: float | None = None
    for value in values:
        yield previous, best
        if math.isfinite(value):
            previous, best = value, value if best is None else min(best, value)


def columns_over_steps(rows: Sequence[ValidationRow], steps: pa.Table) -> dict[str, pa.Array]:
    """Give steps_since and train_loss_min, of the steps since the validation before, and patience_reference.

    The last is the value that patience was held against, as the rows tell it: that of the row where it was last 0.
    """
    losses = list(_losses_since([row.step for row in rows], steps))
    return {
        "steps_since": pa.array(map(len, losses), pa.int64()),
        "train_loss_min": pa.array(map(_lowest_finite, losses), pa.float64()),
        "patience_reference": pa.array(_references(rows), pa.float64()),
    }


def _losses_since(validated_at: Sequence[int], steps: pa.Table) -> Iterator[Any]:
    taken, losses = steps["step"].to_numpy(), steps["train_loss"].to_numpy()
    in_order = np.argsort(taken, kind="stable")
    ends = np.searchsorted(taken, validated_at, sorter=in_order)
    for begin, end in zip((0, *ends), ends, strict=False):
        yield losses[in_order[begin:end]]


def _lowest_finite(losses: Any) -> float | None:
    finite = losses[np.isfinite(losses)]
    return float(finite.min()) if len(finite) else None


def _references(rows: Sequence[ValidationRow]) -> Iterator[float | None]:
    reference: float | None = None
    for row in rows:
        yield reference
        reference = row.value if row.patience == 0 else reference
