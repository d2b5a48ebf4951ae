"""What a configuration means for one trainable: steps, intervals, schedule and guards as plain numbers."""

import math
from dataclasses import dataclass, field

from trainwright.config import ExplosionSection, Interval, RunConfig
from trainwright.errors import InputError
from trainwright.schedules import Schedule
from trainwright.trainable import Trainable


@dataclass(frozen=True, slots=True)
class EarlyStopping:
    """Stop after `patience` validations in a row without a gain of more than `min_delta`."""

    patience: int
    min_delta: float = 0.0
    min_validations: int = 1


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """All that the loop is told. Steps count from 0; an interval of None never comes due."""

    schedule: Schedule
    total_steps: int | None = None
    total_items: int | None = None
    max_seconds: float | None = None
    accumulate: int = 1
    clip_norm: float | None = 1.0
    validate_every: int = 100
    validate_at_start: bool = True
    checkpoint_every: int | None = None
    keep_last: int = 2
    keep_every: int | None = None
    early_stopping: EarlyStopping | None = None
    divergence_ratio: float | None = 2.0
    first_validation_cap: float | None = None
    explosion: ExplosionSection = field(default_factory=ExplosionSection)


def steps_per_epoch(trainable: Trainable, accumulate: int) -> int | None:
    """Give the optimizer updates that make one pass; the last accumulates over what is left. None without an end."""
    micro_batches = trainable.micro_batches_per_epoch
    return None if micro_batches is None else math.ceil(micro_batches / accumulate)


def micro_batches_of(step: int, micro_batches_per_epoch: int | None, accumulate: int) -> int:
    """Give how many micro-batches step `step` accumulates: no window spans the end of an epoch."""
    if accumulate == 1 or micro_batches_per_epoch is None:
        return accumulate
    steps = math.ceil(micro_batches_per_epoch / accumulate)
    is_last = step % steps == steps - 1
    return micro_batches_per_epoch - (steps - 1) * accumulate if is_last else accumulate


def loop_settings(config: RunConfig, trainable: Trainable) -> LoopSettings:
    """Turn a resolved configuration into numbers. Errors: InputError naming the key that does not fit the data."""
    _check_metric(config, trainable)
    train = config.train
    epoch = steps_per_epoch(trainable, train.accumulate)

    def steps(interval: Interval | None, key: str) -> int | None:
        if interval is not None and interval.unit == "epochs" and epoch is None:
            raise InputError(f"{key}: {interval} cannot be counted, for these data have no end; give it in steps")
        return None if interval is None else interval.in_steps(epoch)

    items = train.tokens if train.tokens is not None else train.samples
    total = _total_steps(config, trainable, epoch, items)
    return LoopSettings(
        schedule=Schedule(
            peak=train.learning_rate or 0.0,
            kind=config.schedule.kind,
            total_steps=total,
            warmup_steps=config.schedule.warmup_steps or 0,
            minimum_ratio=config.schedule.minimum_ratio,
            milestones=config.schedule.milestones,
            factor=config.schedule.factor,
        ),
        total_steps=None if items is not None else total,
        total_items=items,
        max_seconds=train.seconds,
        accumulate=train.accumulate,
        clip_norm=train.clip_norm,
        validate_every=steps(config.validate_.every, "validate.every") or 1,
        validate_at_start=config.validate_.at_start,
        checkpoint_every=steps(config.checkpoint.every, "checkpoint.every"),
        keep_last=config.checkpoint.keep_last,
        keep_every=steps(config.checkpoint.keep_every, "checkpoint.keep_every"),
        early_stopping=_early_stopping(config),
        divergence_ratio=config.guards.divergence_ratio,
        first_validation_cap=first_validation_cap(config, trainable),
        explosion=config.guards.explosion,
    )


def _check_metric(config: RunConfig, trainable: Trainable) -> None:
    wanted, known = config.validate_.metric, trainable.validation_metric.name
    if wanted is not None and wanted != known:
        where = config.document.where(("validate", "metric"))
        raise InputError(f"{where}: validate.metric: {wanted!r} is not measured; known metrics: {known}")


def _total_steps(config: RunConfig, trainable: Trainable, epoch: int | None, items: int | None) -> int | None:
    train = config.train
    if train.steps is not None:
        return train.steps
    if train.epochs is not None:
        if epoch is None:
            raise InputError("train.epochs: these data have no end, so an epoch cannot be counted; give train.steps")
        return train.epochs * epoch
    if items is None:
        return None
    unit = "tokens" if train.tokens is not None else "samples"
    if unit != trainable.unit:
        raise InputError(f"train.{unit}: this trainable counts {trainable.unit}; give train.{trainable.unit}")
    if epoch is None or trainable.items_per_epoch is None:
        return None
    return math.ceil(items * epoch / trainable.items_per_epoch)


def _early_stopping(config: RunConfig) -> EarlyStopping | None:
    section = config.early_stopping
    return EarlyStopping(section.patience, section.min_delta, section.min_validations) if section else None


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
        raise InputError(
            f"train.target: {target!r} is not known for model type {trainable.model_type!r}; known: {known}"
        )
    return trainable.baselines[target]
