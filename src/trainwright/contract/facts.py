"""Facts of a run: its files, read by the one reader, as tables for the judge. Nothing is computed that a file denies.

steps          one row a step: the required fields, what the trainable declared, and gpu_util_absent (text: why there is
               no utilisation, as the attempt that wrote the row tells it in start.json or, when its sensor failed on
               the way, in its event sensor_lost; NULL with a sensor). A recorded number that was not finite is NaN or
               infinite here
validations    one row a validation, as recorded, what else the trainable measured among it, and ordinal (from 0),
               previous and best_before (the finite value before, the lowest finite value before; NULL where there is
               none), has_manifest (of its checkpoint), steps_since and train_loss_min (rows of steps since the
               validation before, and the lowest finite loss among them), patience_reference (the value that patience
               was held against: where it was last 0)
events         time, kind, step, attempt; outcome, first_loss and last_loss of the events that tell them
environment    one row: environment.json, nested keys joined by `_`, and first_step, steps_done (as checkpoints,
               validations and the end tell it), data_sha256, tokens_per_epoch, epoch_offset_tokens. device is that of
               the attempts whose rows count; where they differ it is NULL, and device_unknown says which they were
config         one row: run.yaml, nested keys joined by `_`, and mode, mode_given, learning_rate, warmup_steps, target,
               target_given, first_validation_cap, and <name>_explicit of the four that a mode sets; from_scratch (no
               mode finetune, and without the weights of another run); several_batches (a pass has more than one, or no
               end); data_exhaustion is NULL where run.yaml does not give it
baselines      one row: reference values computed from the data (uniform_entropy, unigram_entropy; of series
               naive_mae, seasonal_naive_mae, seasonal_naive_quantile_loss, season)
checkpoints    one row a manifest: name, step
audits         one row an audited step: see `audit_facts`
devices        one row a process on the GPU and sample of it: see `device_facts`
checks         one row a comparison or probe, as the command that made it recorded it; a run that trained has none

A record of checks (checks.jsonl in place of rows of steps) has environment and checks alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainwright import yamlfile
from trainwright.config import SET_BY_MODE
from trainwright.contract.allowlist import NAME
from trainwright.contract.audit_facts import audits_table
from trainwright.contract.device_facts import devices_table
from trainwright.contract.readings import Facts
from trainwright.contract.validation_facts import columns_over_steps, in_order
from trainwright.jsonfile import read_json
from trainwright.manifest import MANIFEST, saved_in
from trainwright.metrics import VALIDATION_FIELDS, Event, ValidationRow, read_checks, without_siblings
from trainwright.rundir import RunDirectory, Start

UTILISATION: Final = "gpu_util_pct"
OVERFIT: Final = ("first_loss", "last_loss")  # what the event `sanity` tells


def load_facts(run: RunDirectory) -> Facts:
    """Read every record of `run`. Errors: DataError for a broken row, InputError for a missing or broken file."""
    environment = read_json(run.environment)
    if run.checks.exists():
        return {"environment": _one_row(flat(environment)), "checks": pa.Table.from_pylist(read_checks(run.checks))}
    steps, validations, events = run.step_table(), run.read_validations(), run.read_events()
    starts = [attempt.start() for attempt in run.attempts()]
    saved = saved_in(run.checkpoints, of=MANIFEST)
    extent = _extent(starts, environment, steps, validations, events)
    return {
        "steps": _steps(steps, starts, events, environment),
        "validations": _validations(validations, frozenset(checkpoint.name for checkpoint in saved), steps),
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
        "devices": devices_table(run),
    }


def steps_table(run: RunDirectory) -> pa.Table:
    """Give the rows of every step, each once."""
    starts = [attempt.start() for attempt in run.attempts()]
    return _steps(run.step_table(), starts, run.read_events(), read_json(run.environment))


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
    rows: pa.Table, starts: Sequence[Start], events: Sequence[Event], environment: Mapping[str, Any]
) -> pa.Table:
    return rows.append_column("gpu_util_absent", _absent(rows, starts, events, environment))


def _absent(
    rows: pa.Table, starts: Sequence[Start], events: Sequence[Event], environment: Mapping[str, Any]
) -> pa.Array:
    """Give why each row holds no utilisation: by its own attempt, or by environment.json where that tells nothing."""
    otherwise: str | None = (environment.get("absent") or {}).get(UTILISATION)
    lost = {event.attempt: str(event.detail.get("reason")) for event in events if _tells_loss(event)}
    told = [start.absent.get(UTILISATION, otherwise) for start in starts]
    without = [
        lost.get(start.attempt) if reason is None else reason for start, reason in zip(starts, told, strict=True)
    ]
    wrote = _wrote(rows, starts)
    reasons = np.where(rows[UTILISATION].is_null(), wrote + len(starts) + 1, wrote)
    return pa.array([*told, otherwise, *without, otherwise], pa.string()).take(pa.array(reasons))


def _tells_loss(event: Event) -> bool:
    return event.kind == "sensor_lost" and event.detail.get("sensor") == UTILISATION


def _wrote(rows: pa.Table, starts: Sequence[Start]) -> Any:
    """Give the place in `starts` of the attempt whose row each is: the last one that began at or before it.

    A row before all of them has the place after the last.
    """
    steps = rows["step"].to_numpy()
    wrote = np.full(len(steps), len(starts))
    for place, start in enumerate(starts):
        wrote[steps >= start.step] = place
    return wrote


def _device(rows: pa.Table, starts: Sequence[Start]) -> dict[str, str | None]:
    """Give the kind of device that took every row; NULL, and the devices by name, where there were several."""
    places, first = np.unique(_wrote(rows, starts), return_index=True)
    took = dict.fromkeys(starts[place].device for place in places[np.argsort(first)] if place < len(starts))
    kinds = {device.partition(":")[0] for device in took}
    if len(kinds) > 1:
        return {"device": None, "device_unknown": f"its attempts ran on different devices: {', '.join(took)}"}
    return {"device": kinds.pop()} if kinds else {}


def _validations(rows: Sequence[ValidationRow], manifests: frozenset[str], steps: pa.Table) -> pa.Table:
    columns = {name: [getattr(row, name) for row in rows] for name in VALIDATION_FIELDS}
    measures = {name: [row.measures.get(name) for row in rows] for name in {n: 0 for row in rows for n in row.measures}}
    return pa.table(
        {
            **{name: pa.array(values) for name, values in columns.items()},
            **{name: pa.array(values, pa.float64()) for name, values in measures.items()},
            **in_order([row.value for row in rows]),
            "has_manifest": pa.array([row.checkpoint in manifests for row in rows], pa.bool_()),
            **columns_over_steps(rows, steps),
        }
    )


def _events(events: Sequence[Event]) -> pa.Table:
    outcomes = [event.detail.get("outcome") for event in events]
    return pa.table(
        {
            "time": pa.array([event.time for event in events], pa.string()),
            "kind": pa.array([event.kind for event in events], pa.string()),
            "step": pa.array([event.step for event in events], pa.int64()),
            "attempt": pa.array([event.attempt for event in events], pa.int64()),
            "outcome": pa.array([value if isinstance(value, str) else None for value in outcomes], pa.string()),
            **{name: pa.array([_number(event, name) for event in events], pa.float64()) for name in OVERFIT},
        }
    )


def _number(event: Event, name: str) -> float | None:
    value = without_siblings(dict(event.detail)).get(name)
    return float(value) if isinstance(value, int | float) else None


def _extent(
    starts: Sequence[Start],
    environment: Mapping[str, Any],
    steps: pa.Table,
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


def _seen_before(steps: pa.Table, validations: Sequence[ValidationRow]) -> int:
    """Give the items that a parent run had seen before this run's first step."""
    if not validations:
        return 0
    first = validations[0]
    own = steps.filter(pc.less(steps["step"], first.step))
    tokens, samples = (_or_zero(own, name) for name in ("tokens", "samples"))
    return max(0, first.tokens_seen - round(float(np.where(tokens != 0, tokens, samples).sum())))


def _or_zero(rows: pa.Table, name: str) -> Any:
    return rows[name].fill_null(0.0).to_numpy() if name in rows.column_names else np.zeros(len(rows))


def _offset(seen: int, per_epoch: int) -> int:
    """Give the place in the pass; at its very end the wrap-around is still to come, so that is not place 0."""
    return seen % per_epoch or min(seen, per_epoch)


def _config(data: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
    train, schedule = data.get("train") or {}, data.get("schedule") or {}
    explicit = environment.get("explicit") or {}
    target, mode = environment.get("target"), train.get("mode")
    return {
        "data_exhaustion": None,
        "train_sanity": False,
        **flat(data),
        "mode": mode,
        "mode_given": mode is not None,
        "from_scratch": mode != "finetune" and train.get("init") is None,
        "several_batches": environment.get("steps_per_epoch") != 1,
        "learning_rate": train.get("learning_rate"),
        "warmup_steps": schedule.get("warmup_steps") or 0,
        "target": target,
        "target_given": target is not None,
        "first_validation_cap": environment.get("first_validation_cap"),
        **{f"{name}_explicit": explicit.get(name) for name in (key.rpartition(".")[2] for key in SET_BY_MODE)},
    }
