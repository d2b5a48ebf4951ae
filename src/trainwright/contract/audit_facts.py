"""The table `audits`: each audited step as it was recorded, beside what its row says of it."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from trainwright.metrics import Audit, StepMetrics

AS_RECORDED = {
    "step": pa.int64(),
    "lr_scheduled": pa.float64(),
    "grad_norm": pa.float64(),
    "tensors": pa.int64(),
    "tensors_changed": pa.int64(),
    "batch_repeated": pa.bool_(),
    "batch_rows": pa.int64(),
    "held_out_rows": pa.int64(),
}


def audits_table(audits: Sequence[Audit], steps: Sequence[StepMetrics]) -> pa.Table:
    """Give one row an audit: as recorded, the least and greatest rate of the groups, and the row's own numbers.

    lr_groups_min, lr_groups_max and lr_applied_min, lr_applied_max are over the optimizer's groups (NULL where one
    cannot be told); logged_lr and logged_grad_norm stand in steps.jsonl, NULL where the step has no row there.
    """
    rows = {row.step: row for row in steps}
    logged = [rows.get(audit.step) for audit in audits]
    computed: dict[str, list[float | None]] = {
        "logged_lr": [row.lr if row else None for row in logged],
        "logged_grad_norm": [row.grad_norm if row else None for row in logged],
    }
    for name in ("lr_groups", "lr_applied"):
        for how in (min, max):
            computed[f"{name}_{how.__name__}"] = [_over(how, getattr(audit, name)) for audit in audits]
    recorded = {name: pa.array([getattr(audit, name) for audit in audits], kind) for name, kind in AS_RECORDED.items()}
    return pa.table({**recorded, **{name: pa.array(values, pa.float64()) for name, values in computed.items()}})


def _over(how: Any, rates: Sequence[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return how(known) if known and len(known) == len(rates) else None
