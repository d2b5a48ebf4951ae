"""The table `audits`: each audited step as it was recorded, beside what its row says of it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainwright.metrics import Audit

AS_RECORDED = {
    "step": pa.int64(),
    "lr_scheduled": pa.float64(),
    "grad_norm": pa.float64(),
    "tensors": pa.int64(),
    "tensors_changed": pa.int64(),
    "batch_repeated": pa.bool_(),
    "batch_rows": pa.int64(),
    "held_out_rows": pa.int64(),
    "held_out_repeats": pa.float64(),
}


def audits_table(audits: Sequence[Audit], steps: pa.Table) -> pa.Table:
    """Give one row an audit: as recorded, the least and greatest rate of the groups, and the row's own numbers.

    lr_groups_min, lr_groups_max and lr_applied_min, lr_applied_max are over the optimizer's groups (NULL where one
    cannot be told); logged_lr and logged_grad_norm stand in steps.jsonl, NULL where the step has no row there.
    """
    logged = _logged([audit.step for audit in audits], steps)
    computed: dict[str, Any] = {f"logged_{name}": logged[name] for name in ("lr", "grad_norm")}
    for name in ("lr_groups", "lr_applied"):
        for how in (min, max):
            computed[f"{name}_{how.__name__}"] = [_over(how, getattr(audit, name)) for audit in audits]
    recorded = {name: pa.array([getattr(audit, name) for audit in audits], kind) for name, kind in AS_RECORDED.items()}
    return pa.table({**recorded, **{name: pa.array(values, pa.float64()) for name, values in computed.items()}})


def _logged(wanted: Sequence[int], steps: pa.Table) -> pa.Table:
    """Give lr and grad_norm of the row of each wanted step, the last of several; NULL where it has none."""
    numbers = pa.array(wanted, pa.int64())
    found = steps.select(["step", "lr", "grad_norm"]).filter(pc.is_in(steps["step"], value_set=numbers))
    latest_first = found.take(np.arange(len(found))[::-1])
    return latest_first.take(pc.index_in(numbers, value_set=latest_first["step"].combine_chunks()))


def _over(how: Any, rates: Sequence[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return how(known) if known and len(known) == len(rates) else None
