"""Columns of the table `validations` that rest on other rows: the steps before each, and the validations before it."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from trainwright.metrics import ValidationRow


def compared(rows: Sequence[ValidationRow], steps: pa.Table) -> dict[str, pa.Array]:
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
