"""The table `devices`: each sample of the run's GPU as it was recorded, and when and by whom the GPU was held."""

from typing import Any

import pyarrow as pa

from trainwright.devices import DeviceSample, samples_of, seconds_between
from trainwright.rundir import RunDirectory, Start

AS_RECORDED = {
    "time": pa.string(),
    "uuid": pa.string(),
    "index": pa.int64(),
    "pid": pa.int64(),
    "process": pa.string(),
    "used_mib": pa.float64(),
    "utilisation_pct": pa.float64(),
    "power_w": pa.float64(),
    "temperature_c": pa.float64(),
}
COMPUTED = {"attempt": pa.int64(), "own": pa.bool_(), "seconds": pa.float64()}


def devices_table(run: RunDirectory) -> pa.Table:
    """Give one row a process and sample: as recorded, and attempt, own, seconds.

    own: the process is the attempt's; seconds: since the attempt's first step (NULL where it took none).
    """
    first_steps = {event.attempt: event.time for event in run.read_events() if event.kind == "first_step"}
    rows = [_row(start, sample, first_steps.get(start.attempt)) for start, sample in samples_of(run)]
    columns = {**AS_RECORDED, **COMPUTED}
    return pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in columns.items()})


def _row(start: Start, sample: DeviceSample, first_step: str | None) -> dict[str, Any]:
    return {
        **{name: getattr(sample, name) for name in AS_RECORDED},
        "attempt": start.attempt,
        "own": sample.pid == start.pid,
        "seconds": None if first_step is None else seconds_between(first_step, sample.time),
    }
