"""The records of a run that are no rows: environment.json, start.json, result.json."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from trainwright import environment
from trainwright.budget import LoopSettings, first_validation_cap, steps_per_epoch
from trainwright.config import RunConfig
from trainwright.contract.judge import Verdict
from trainwright.loop import Ended
from trainwright.origins import Origin, Weights
from trainwright.outcome import Outcome
from trainwright.peaks import peak_flops
from trainwright.rundir import Result, RunDirectory, Start
from trainwright.sensors import NoSensor, Sensor
from trainwright.timestamps import now
from trainwright.trainable import Trainable


def environment_record(
    config: RunConfig,
    trainable: Trainable,
    settings: LoopSettings,
    sensor: Sensor | NoSensor,
    *,
    explicit: Mapping[str, bool],
    target: float | None,
) -> dict[str, Any]:
    """Give what the run is made of and runs on; `absent` names each sensor that is not there, with the reason."""
    described = environment.describe(trainable.device)
    return {
        **described,
        "seed": config.seed,
        "model_type": trainable.model_type,
        "architecture": dict(trainable.architecture),
        "interface": dict(trainable.interface),
        "parameters": trainable.parameter_count,
        **_compute(trainable),
        "hashes": dict(trainable.data_hashes),
        "config_sha256": config.sha256(),
        "baselines": dict(trainable.baselines),
        "target": target,
        "first_validation_cap": first_validation_cap(config, trainable),
        "explicit": dict(explicit),
        "planned_steps": settings.schedule.total_steps,
        "steps_per_epoch": steps_per_epoch(trainable, settings.accumulate),
        "items_per_epoch": trainable.items_per_epoch,
        "absent": {**described["absent"], **absent_sensors(sensor)},
    }


def _compute(trainable: Trainable) -> dict[str, float | bool | None]:
    """Give what an item costs and what the device can do at most, and whether each is known."""
    cost, peak = trainable.flops_per_item, peak_flops(environment.device_name(trainable.device))
    known = {"flops_known": cost is not None, "peak_known": peak is not None}
    return {"flops_per_item": cost, "peak_flops": peak, **known}


def absent_sensors(sensor: Sensor | NoSensor) -> dict[str, str | None]:
    """Give sensor → why it is not there; None for one that is."""
    absent = sensor.reason if isinstance(sensor, NoSensor) else None
    return {"gpu_util_pct": absent, "devices": absent}


def start_record(
    run: RunDirectory,
    attempt: int,
    trainable: Trainable,
    sensor: Sensor | NoSensor,
    origin: Origin | None,
    taken: Weights | None,
) -> Start:
    """Give what an attempt begins from, and what its rows declare."""
    parent = origin.run if origin and origin.run.path != run.path else None
    return Start(
        attempt=attempt,
        time=now(),
        step=origin.checkpoint.step if origin else 0,
        checkpoint=origin.checkpoint.name if origin else None,
        parent=parent.id if parent else None,
        parent_directory=str(parent.path.resolve()) if parent else None,
        init=taken.record() if taken else None,
        absent=absent_sensors(sensor),
        unit=trainable.unit,
        metrics={metric.name: metric.unit for metric in trainable.metrics},
        measures={measure.name: measure.unit for measure in trainable.validation_measures},
        device=str(trainable.device),
        pid=os.getpid(),
        command=sys.argv,
    )


def result_record(run: RunDirectory, ended: Ended, outcome: Outcome, why: str, verdicts: Sequence[Verdict]) -> Result:
    """Give how the run ended, as judged."""
    attempts = run.attempts()
    return Result(
        run=run.id,
        outcome=outcome.label,
        exit_code=outcome.exit_code,
        why=why,
        step=ended.step,
        best_validation=ended.best,
        best_checkpoint=ended.best_checkpoint,
        seconds=dict(ended.seconds),
        attempts=attempts[-1].number,
        parent=attempts[0].start().parent,
        verdicts=[msgspec.to_builtins(verdict) for verdict in verdicts],
    )
