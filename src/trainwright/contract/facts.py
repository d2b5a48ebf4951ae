"""Facts of a run: its files, read by the one reader, as tables for the judge. Nothing is computed that a file denies.

steps          one row a step: the required fields, what the trainable declared, and gpu_util_absent (text: why there is
               no utilisation, as the attempt that wrote the row tells it in start.json or, when its sensor failed on
               the way, in its event sensor_lost; NULL with a sensor). A recorded number that was not finite is NaN or
               infinite here
validations    one row a validation, as recorded, and ordinal (from 0), previous and best_before (the finite value
               before, the lowest finite value before; NULL where there is none), has_manifest (of its checkpoint)
events         time, kind, step, attempt, and outcome of the events that tell one
environment    one row: environment.json, nested keys joined by `_`, and first_step, steps_done (as checkpoints,
               validations and the end tell it), data_sha256, tokens_per_epoch, epoch_offset_tokens. device is that of
               the attempts whose rows count; where they differ it is NULL, and device_unknown says which they were
config         one row: run.yaml, nested keys joined by `_`, and mode, mode_given, learning_rate, warmup_steps, target,
               target_given, first_validation_cap, and <name>_explicit of the four that a mode sets; data_exhaustion is
               NULL where run.yaml does not give it
baselines      one row: reference values computed from the data (uniform_entropy, unigram_entropy)
checkpoints    one row a manifest: name, step
audits         one row an audited step: see `audit_facts`
checks         one row a comparison or probe, as the command that made it recorded it; a run that trained has none

A record of checks (checks.jsonl in place of rows of steps) has environment and checks alone.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from trainwright import yamlfile
from trainwright.config import SET_BY_MODE
from trainwright.contract.allowlist import NAME
from trainwright.contract.audit_facts import audits_table
from trainwright.contract.readings import Facts
from trainwright.manifest import MANIFEST, saved_in
from trainwright.metrics import Event, StepMetrics, ValidationRow, read_checks, steps_as_columns
from trainwright.rundir import RunDirectory, Start, read_json

UTILISATION: Final = "gpu_util_pct"


def load_facts(run: RunDirectory) -> Facts:
    """Read every record of `run`. Errors: DataError for a broken row, InputError for a missing or broken file."""
    environment = read_json(run.environment)
    if run.checks.exists():
        return {"environment": _one_row(flat(environment)), "checks": pa.Table.from_pylist(read_checks(run.checks))}
    steps, validations, events = run.read_steps(), run.read_validations(), run.read_events()
    starts = [attempt.start() for attempt in run.attempts()]
    saved = saved_in(run.checkpoints, of=MANIFEST)
    extent = _extent(starts, environment, steps, validations, events)
    return {
        "steps": _steps(steps, starts, events, environment),
        "validations": _validations(validations, frozenset(checkpoint.name for checkpoint in saved)),
        "events": _events(events),
        "environment": _one_row({**flat(environment), **extent, **_device(steps, starts)}),
        "config": _one_row(_config(yamlfile.load(run.config).data, environment)),
        "baselines": _one_row(environment.get("baselines") or {}),
        "checkpoints": pa.table(
            {
                "name": pa.array([checkpoint.name for checkpoint in saved], pa.string()),
                "step": pa.array([checkpoint.step for checkpoint in saved], pa.int64()),
            }
        ),
        "audits": audits_table(run.read_audits(), steps),
    }


def steps_table(run: RunDirectory) -> pa.Table:
    """Give the rows of every step, each once."""
    starts = [attempt.start() for attempt in run.attempts()]
    return _steps(run.read_steps(), starts, run.read_events(), read_json(run.environment))


def flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Give `git_commit` for {git: {commit: …}}; lists, and names that no expression can write, are left out."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= flat(value, f"{name}_")
        elif not isinstance(value, list) and NAME.fullmatch(name):
            found[name] = value
    return found


def _one_row(values: Mapping[str, Any]) -> pa.Table:
    return pa.table({name: pa.array([value]) for name, value in values.items()})


def _steps(
    rows: Sequence[StepMetrics], starts: Sequence[Start], events: Sequence[Event], environment: Mapping[str, Any]
) -> pa.Table:
    columns = steps_as_columns(rows)
    types = {name: pa.int64() if name == "step" else pa.float64() for name in columns}
    absent = _absent(rows, starts, events, environment)
    table = pa.table({name: pa.array(values, types[name]) for name, values in columns.items()})
    return table.append_column("gpu_util_absent", pa.array(absent, pa.string()))


def _absent(
    rows: Sequence[StepMetrics], starts: Sequence[Start], events: Sequence[Event], environment: Mapping[str, Any]
) -> list[str | None]:
    """Give why each row holds no utilisation: by its own attempt, or by environment.json where that tells nothing."""
    otherwise: str | None = (environment.get("absent") or {}).get(UTILISATION)
    lost = {event.attempt: str(event.detail.get("reason")) for event in events if _tells_loss(event)}
    reasons = []
    for row in rows:
        start = _start_of(row, starts)
        reason = start.absent.get(UTILISATION, otherwise) if start else otherwise
        if start and reason is None and row.gpu_util_pct is None:
            reason = lost.get(start.attempt)
        reasons.append(reason)
    return reasons


def _tells_loss(event: Event) -> bool:
    return event.kind == "sensor_lost" and event.detail.get("sensor") == UTILISATION


def _start_of(row: StepMetrics, starts: Sequence[Start]) -> Start | None:
    """Give the start of the attempt whose row this is: the last one that began at or before it."""
    return next((start for start in reversed(starts) if start.step <= row.step), None)


def _device(rows: Sequence[StepMetrics], starts: Sequence[Start]) -> dict[str, str | None]:
    """Give the kind of device that took every row; NULL, and the devices by name, where there were several."""
    took = dict.fromkeys(start.device for row in rows if (start := _start_of(row, starts)))
    kinds = {device.partition(":")[0] for device in took}
    if len(kinds) > 1:
        return {"device": None, "device_unknown": f"its attempts ran on different devices: {', '.join(took)}"}
    return {"device": kinds.pop()} if kinds else {}


def _validations(rows: Sequence[ValidationRow], manifests: frozenset[str]) -> pa.Table:
    columns = {name: [getattr(row, name) for row in rows] for name in ValidationRow.__struct_fields__}
    before = list(_before([row.value for row in rows]))
    return pa.table(
        {
            **{name: pa.array(values) for name, values in columns.items()},
            "ordinal": pa.array(range(len(rows)), pa.int64()),
            "previous": pa.array([previous for previous, _ in before], pa.float64()),
            "best_before": pa.array([best for _, best in before], pa.float64()),
            "has_manifest": pa.array([row.checkpoint in manifests for row in rows], pa.bool_()),
        }
    )


def _before(values: Iterable[float]) -> Iterator[tuple[float | None, float | None]]:
    """Give, for each value, the finite one before it and the lowest finite one before it."""
    previous: float | None = None
    best: float | None = None
    for value in values:
        yield previous, best
        if math.isfinite(value):
            previous, best = value, value if best is None else min(best, value)


def _events(events: Sequence[Event]) -> pa.Table:
    outcomes = [event.detail.get("outcome") for event in events]
    return pa.table(
        {
            "time": pa.array([event.time for event in events], pa.string()),
            "kind": pa.array([event.kind for event in events], pa.string()),
            "step": pa.array([event.step for event in events], pa.int64()),
            "attempt": pa.array([event.attempt for event in events], pa.int64()),
            "outcome": pa.array([value if isinstance(value, str) else None for value in outcomes], pa.string()),
        }
    )


def _extent(
    starts: Sequence[Start],
    environment: Mapping[str, Any],
    steps: Sequence[StepMetrics],
    validations: Sequence[ValidationRow],
    events: Sequence[Event],
) -> dict[str, Any]:
    told = [event.step for event in events if event.kind in {"checkpoint_saved", "finished"} and event.step is not None]
    per_epoch = environment.get("items_per_epoch")
    return {
        "first_step": starts[0].step if starts else 0,
        "steps_done": max([*told, *(row.step for row in validations)], default=None),
        "data_sha256": (environment.get("hashes") or {}).get("data"),
        "tokens_per_epoch": per_epoch,
        "epoch_offset_tokens": _offset(_seen_before(steps, validations), per_epoch) if per_epoch else None,
    }


def _seen_before(steps: Sequence[StepMetrics], validations: Sequence[ValidationRow]) -> int:
    """Give the items that a parent run had seen before this run's first step."""
    if not validations:
        return 0
    first = validations[0]
    own = sum(row.extra.get("tokens") or row.extra.get("samples") or 0 for row in steps if row.step < first.step)
    return max(0, first.tokens_seen - round(own))


def _offset(seen: int, per_epoch: int) -> int:
    """Give the place in the pass; at its very end the wrap-around is still to come, so that is not place 0."""
    return seen % per_epoch or min(seen, per_epoch)


def _config(data: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
    train, schedule = data.get("train") or {}, data.get("schedule") or {}
    explicit = environment.get("explicit") or {}
    target, mode = environment.get("target"), train.get("mode")
    return {
        "data_exhaustion": None,
        **flat(data),
        "mode": mode,
        "mode_given": mode is not None,
        "learning_rate": train.get("learning_rate"),
        "warmup_steps": schedule.get("warmup_steps"),
        "target": target,
        "target_given": target is not None,
        "first_validation_cap": environment.get("first_validation_cap"),
        **{f"{name}_explicit": explicit.get(name) for name in (key.rpartition(".")[2] for key in SET_BY_MODE)},
    }
