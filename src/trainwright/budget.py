"""What a configuration means for one trainable: steps, intervals, schedule and guards as plain numbers."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from trainwright.config import EarlyStoppingSection, ExplosionSection, Interval, RunConfig
from trainwright.errors import InputError
from trainwright.metrics import (
    COMPUTED_OF_VALIDATIONS,
    MEASURED_STEP_FIELDS,
    NONFINITE_SUFFIX,
    THROUGHPUT_FIELDS,
    VALIDATION_FIELDS,
)
from trainwright.schedules import Schedule
from trainwright.trainable import Trainable

FIELDS_OF_A_ROW: Final = frozenset({*MEASURED_STEP_FIELDS, *THROUGHPUT_FIELDS, "tokens", "samples"})
FIELDS_OF_A_VALIDATION: Final = frozenset({*VALIDATION_FIELDS, *COMPUTED_OF_VALIDATIONS})


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """All that the loop is told. Steps count from 0; an interval of None never comes due."""

    schedule: Schedule
    total_steps: int | None = None
    total_items: int | None = None
    total_env_steps: int | None = None
    max_seconds: float | None = None
    accumulate: int = 1
    clip_norm: float | None = 1.0
    validate_every: int = 100
    validate_at_start: bool = True
    checkpoint_every: int | None = None
    keep_last: int = 2
    keep_every: int | None = None
    background: bool = False
    early_stopping: EarlyStoppingSection | None = None
    divergence_ratio: float | None = 2.0
    first_validation_cap: float | None = None
    explosion: ExplosionSection = field(default_factory=ExplosionSection)

    def validates_after(self, taken: int) -> bool:
        """Tell whether a validation follows when `taken` updates are."""
        return taken % self.validate_every == 0

    def saves_after(self, taken: int) -> bool:
        """Tell whether a periodic checkpoint follows when `taken` updates are."""
        return self.checkpoint_every is not None and taken > 0 and taken % self.checkpoint_every == 0

    def ends_at(self, taken: int) -> bool:
        """Tell whether a budget in steps is used up when `taken` updates are."""
        return self.total_steps is not None and taken >= self.total_steps


def steps_per_epoch(trainable: Trainable, accumulate: int) -> int | None:
    """Give the optimizer updates that make one pass. None without an end.

    The last of a pass, and of each round of an agent, accumulates over what is left.
    """
    micro_batches, rounds = trainable.micro_batches_per_epoch, trainable.rounds
    if micro_batches is None:
        return None
    if rounds is None:
        return math.ceil(micro_batches / accumulate)
    return micro_batches // rounds.micro_batches * rounds.updates(accumulate)


def loop_settings(config: RunConfig, trainable: Trainable) -> LoopSettings:
    """Turn a resolved configuration into numbers. Errors: InputError naming the key that does not fit the data."""
    _check_metric(config, trainable)
    with config.at("model.type"):
        check_metrics(trainable)
    train = config.train
    epoch = steps_per_epoch(trainable, train.accumulate)

    def steps(interval: Interval | None, key: str) -> int | None:
        if interval is not None and interval.unit == "epochs" and epoch is None:
            what = f"{interval} cannot be counted, for these data have no end; give it in steps"
            raise InputError(config.told(key, what))
        return None if interval is None else interval.in_steps(epoch)

    items = train.tokens if train.tokens is not None else train.samples
    total = _total_steps(config, trainable, epoch, items)
    return LoopSettings(
        schedule=_schedule(config, total),
        total_steps=None if items is not None or train.env_steps is not None else total,
        total_items=items,
        total_env_steps=train.env_steps,
        max_seconds=train.seconds,
        accumulate=train.accumulate,
        clip_norm=train.clip_norm,
        validate_every=steps(config.validate_.every, "validate.every") or 1,
        validate_at_start=config.validate_.at_start,
        checkpoint_every=steps(config.checkpoint.every, "checkpoint.every"),
        keep_last=config.checkpoint.keep_last,
        keep_every=steps(config.checkpoint.keep_every, "checkpoint.keep_every"),
        background=_in_background(config, trainable),
        early_stopping=config.early_stopping,
        divergence_ratio=config.guards.divergence_ratio,
        first_validation_cap=first_validation_cap(config, trainable),
        explosion=config.guards.explosion,
    )


def _in_background(config: RunConfig, trainable: Trainable) -> bool:
    """Tell where checkpoints are written: a device trains on by itself, threads of a CPU would be taken from it."""
    if config.checkpoint.write is None:
        return trainable.device.type == "cuda"
    return config.checkpoint.write == "background"


def _schedule(config: RunConfig, total_steps: int | None) -> Schedule:
    section = config.schedule
    with config.at("schedule.kind"):
        return Schedule(
            peak=config.train.learning_rate or 0.0,
            kind=section.kind,
            total_steps=total_steps,
            warmup_steps=section.warmup_steps or 0,
            minimum_ratio=section.minimum_ratio,
            milestones=section.milestones,
            factor=section.factor,
        )


def check_metrics(trainable: Trainable) -> None:
    """Check the names of the declared metrics. Errors: InputError for one that a row cannot have beside its fields."""
    of_steps, of_validations = trainable.metrics, trainable.validation_measures
    for metrics, fields in (of_steps, FIELDS_OF_A_ROW), (of_validations, FIELDS_OF_A_VALIDATION):
        names = [metric.name for metric in metrics]
        for name in names:
            problem = _problem_of(name, names, fields)
            if problem:
                raise InputError(f"model type {trainable.model_type!r} declares the metric {name!r}, {problem}")


def _problem_of(name: str, names: Sequence[str], fields: frozenset[str]) -> str | None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        return "expected small letters, digits and _, a letter first, as in policy_loss"
    if name in fields:
        return "which is a field of every row; choose another name"
    if name.endswith(NONFINITE_SUFFIX):
        return f"whose end {NONFINITE_SUFFIX} tells in a row what was not finite; choose another name"
    return "more than once; a name stands for one number" if names.count(name) > 1 else None


def _check_metric(config: RunConfig, trainable: Trainable) -> None:
    wanted, known = config.validate_.metric, trainable.validation_metric.name
    if wanted is not None and wanted != known:
        raise InputError(config.told("validate.metric", f"{wanted!r} is not measured; known metrics: {known}"))


def _total_steps(config: RunConfig, trainable: Trainable, epoch: int | None, items: int | None) -> int | None:
    train = config.train
    if train.steps is not None:
        return train.steps
    if train.epochs is not None:
        if epoch is None:
            what = "these data have no end, so an epoch cannot be counted; give train.steps"
            raise InputError(config.told("train.epochs", what))
        return train.epochs * epoch
    if train.env_steps is not None:
        return _steps_of(config, trainable, epoch, train.env_steps)
    if items is None:
        return None
    unit = "tokens" if train.tokens is not None else "samples"
    if unit != trainable.unit:
        what = f"this trainable counts {trainable.unit}; give train.{trainable.unit}"
        raise InputError(config.told(f"train.{unit}", what))
    if epoch is None or trainable.items_per_epoch is None:
        return None
    return math.ceil(items * epoch / trainable.items_per_epoch)


def _steps_of(config: RunConfig, trainable: Trainable, epoch: int | None, env_steps: int) -> int | None:
    """Give the updates that environment steps come to; None where an epoch has no fixed number of them."""
    per_epoch, rounds = trainable.env_steps_per_epoch, trainable.rounds
    if per_epoch is None:
        what = f"model type {trainable.model_type!r} acts in no environment; give train.steps"
        raise InputError(config.told("train.env_steps", what))
    if rounds is not None:
        learnt = max(1, math.ceil(env_steps / rounds.env_steps) - rounds.unlearnt)
        return learnt * rounds.updates(config.train.accumulate)
    return None if epoch is None else math.ceil(env_steps * epoch / per_epoch)


def first_validation_cap(config: RunConfig, trainable: Trainable) -> float | None:
    """Give the explicit cap; from scratch else 2·ln(V), twice the loss of knowing nothing about V tokens."""
    uniform = trainable.baselines.get("uniform_entropy")
    if config.guards.first_validation_cap is None and config.train.mode == "from_scratch" and uniform is not None:
        return 2 * uniform
    return config.guards.first_validation_cap


def target_value(config: RunConfig, trainable: Trainable) -> float | None:
    """Give the target as a number. Errors: InputError when it names a baseline that these data do not have."""
    target = config.train.target
    if not isinstance(target, str):
        return target
    if target not in trainable.baselines:
        known = ", ".join(trainable.baselines) or "none"
        what = f"{target!r} is not known for model type {trainable.model_type!r}; known: {known}"
        raise InputError(config.told("train.target", what))
    return trainable.baselines[target]
