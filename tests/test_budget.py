import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.toys import MODEL_TYPE, Toy, ToyOptions, toy
from trainwright.budget import (
    FIELDS_OF_A_ROW,
    first_validation_cap,
    loop_settings,
    steps_per_epoch,
    target_value,
)
from trainwright.config import EarlyStoppingSection, RunConfig
from trainwright.errors import InputError
from trainwright.metrics import StepMetrics
from trainwright.trainable import Metric, Setup


class Endless(Toy):
    @property
    def micro_batches_per_epoch(self) -> int | None:
        return None

    @property
    def items_per_epoch(self) -> int | None:
        return None


class WithBaselines(Toy):
    @property
    def baselines(self) -> Mapping[str, float]:
        return {"unigram_entropy": 6.5, "uniform_entropy": math.log(50_257)}


def config(*overrides: str, **train: Any) -> RunConfig:
    whole = {"model": {"type": MODEL_TYPE}, "train": {"learning_rate": 1e-3, **train}, "schedule": {"kind": "constant"}}
    return RunConfig.parse(whole, overrides).resolved()


def endless() -> Endless:
    return Endless.build(Setup(model=ToyOptions(), data={}, batch_size=1))


def with_baselines() -> WithBaselines:
    return WithBaselines.build(Setup(model=ToyOptions(), data={}, batch_size=1))


@pytest.mark.parametrize(("accumulate", "steps"), [(1, 10), (4, 3), (5, 2), (11, 1)])
def test_the_last_step_of_an_epoch_accumulates_what_is_left(accumulate: int, steps: int) -> None:
    assert steps_per_epoch(toy(n=10, batch_size=1), accumulate) == steps
    assert steps_per_epoch(endless(), accumulate) is None


def test_a_budget_of_steps_is_that_many_steps() -> None:
    settings = loop_settings(config(steps=3), toy(n=10, batch_size=4))
    assert (settings.total_steps, settings.total_items, settings.max_seconds) == (3, None, None)
    assert settings.schedule.total_steps == 3


def test_a_budget_of_epochs_is_their_steps() -> None:
    settings = loop_settings(config(epochs=2, accumulate=4), toy(n=10, batch_size=1))
    assert (settings.total_steps, settings.schedule.total_steps) == (6, 6)


@pytest.mark.parametrize(("samples", "steps"), [(10, 3), (11, 4), (25, 8), (1, 1)])
def test_a_budget_of_items_ends_by_their_count_and_plans_the_schedule_by_steps(samples: int, steps: int) -> None:
    settings = loop_settings(config(samples=samples), toy(n=10, batch_size=4))
    assert (settings.total_steps, settings.total_items) == (None, samples)
    assert settings.schedule.total_steps == steps


def test_a_budget_in_another_unit_than_the_trainables_is_refused() -> None:
    with pytest.raises(InputError, match=r"train\.tokens: this trainable counts samples; give train\.samples"):
        loop_settings(config(tokens=10), toy())
    assert loop_settings(config(tokens=10), toy(unit="tokens")).total_items == 10


def test_a_time_limit_stands_alone_or_beside_another_budget() -> None:
    alone = loop_settings(config(seconds=2.5), toy())
    beside = loop_settings(config(seconds=2.5, steps=9), toy())
    assert (alone.max_seconds, alone.total_steps, beside.max_seconds, beside.total_steps) == (2.5, None, 2.5, 9)
    with pytest.raises(InputError, match="needs a known number of steps"):
        loop_settings(config("schedule.kind=cosine", seconds=2.5), toy())


@pytest.mark.parametrize(
    ("overrides", "train", "key"),
    [
        ((), {"epochs": 2}, r"train\.epochs: these data have no end"),
        (("validate.every=2 epochs",), {"steps": 2}, r"validate\.every: 2 epochs cannot be counted"),
        (("checkpoint.every=1 epoch",), {"steps": 2}, r"checkpoint\.every: 1 epochs cannot be counted"),
        (("checkpoint.keep_every=1 epoch",), {"steps": 2}, r"checkpoint\.keep_every: 1 epochs cannot be counted"),
    ],
)
def test_epochs_of_data_without_an_end_are_refused(overrides: tuple[str, ...], train: dict[str, int], key: str) -> None:
    with pytest.raises(InputError, match=key):
        loop_settings(config(*overrides, **train), endless())


def test_intervals_in_epochs_become_steps() -> None:
    told = config(
        "validate.every=2 epochs", "checkpoint.every=1 epoch", "checkpoint.keep_every=7", steps=9, accumulate=4
    )
    settings = loop_settings(told, toy(n=10, batch_size=1))
    assert (settings.validate_every, settings.checkpoint_every, settings.keep_every) == (6, 3, 7)


def test_a_misspelt_metric_is_an_error_before_step_0_that_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"metric=val_los'.*'val_los' is not measured; known metrics: val_loss"):
        loop_settings(config("validate.metric=val_los", steps=1), toy())
    loop_settings(config("validate.metric=val_loss", steps=1), toy())


class Declaring(Toy):
    names: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()

    @property
    def metrics(self) -> Sequence[Metric]:
        return [Metric(name, "1") for name in self.names]

    @property
    def validation_measures(self) -> Sequence[Metric]:
        return [Metric(name, "1") for name in self.measured]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("Loss",), "'Loss', expected small letters, digits and _, a letter first"),
        (("policy-loss",), "'policy-loss', expected small letters"),
        (("2nd",), "'2nd', expected small letters"),
        (("",), "'', expected small letters"),
        (("fine\n",), r"'fine\\n', expected small letters"),
        *(((name,), f"{name!r}, which is a field of every row") for name in sorted(FIELDS_OF_A_ROW)),
        (("kl_nonfinite",), "'kl_nonfinite', whose end _nonfinite tells"),
        (("kl", "entropy", "kl"), "'kl', more than once"),
    ],
)
def test_a_metric_that_a_row_cannot_have_is_refused_by_its_name_before_step_0(
    names: tuple[str, ...], message: str
) -> None:
    trainable = Declaring.build(Setup(model=ToyOptions(), data={}, batch_size=1))
    trainable.names = names
    with pytest.raises(InputError, match=rf"model\.type: model type 'tests\.toys:Toy' declares the metric {message}"):
        loop_settings(config(steps=1), trainable)


@pytest.mark.parametrize("name", ["value", "is_best", "previous", "Coverage"])
def test_a_measure_that_a_validation_cannot_have_is_refused_by_its_name(name: str) -> None:
    trainable = Declaring.build(Setup(model=ToyOptions(), data={}, batch_size=1))
    trainable.measured = (name,)
    with pytest.raises(InputError, match=rf"declares the metric {name!r}, (which is a field|expected small letters)"):
        loop_settings(config(steps=1), trainable)


def test_metrics_of_other_names_are_fine() -> None:
    trainable = Declaring.build(Setup(model=ToyOptions(), data={}, batch_size=1))
    trainable.names = ("kl", "policy_loss_2", "loss", "nonfinite", "value")
    trainable.measured = ("kl", "train_loss")
    assert loop_settings(config(steps=1), trainable).total_steps == 1


def test_the_fields_of_a_row_are_those_of_its_type_and_the_items() -> None:
    own = {*StepMetrics.__struct_fields__} - {"extra", "wall_ms_measured"}
    assert {*own, "tokens", "samples"} == FIELDS_OF_A_ROW


def test_every_other_value_reaches_the_loop() -> None:
    told = config(
        *("early_stopping={patience: 4, min_delta: 0.5, min_validations: 2}", "guards.divergence_ratio=3.0"),
        *("guards.explosion.policy=skip", "checkpoint.keep_last=5", "validate.at_start=false"),
        *("schedule={kind: step, warmup_steps: 3, minimum_ratio: 0.5, milestones: [7], factor: 0.25}",),
        steps=9,
        clip_norm=None,
        accumulate=2,
    )
    settings = loop_settings(told, toy())
    assert settings.early_stopping == EarlyStoppingSection(patience=4, min_delta=0.5, min_validations=2)
    assert (settings.divergence_ratio, settings.explosion.policy, settings.keep_last) == (3.0, "skip", 5)
    assert (settings.clip_norm, settings.accumulate, settings.validate_at_start) == (None, 2, False)
    schedule = settings.schedule
    assert (schedule.peak, schedule.kind, schedule.warmup_steps, schedule.factor) == (1e-3, "step", 3, 0.25)
    assert (schedule.minimum_ratio, schedule.milestones) == (0.5, (7,))


@pytest.mark.parametrize(
    ("mode", "overrides", "cap"),
    [
        ("from_scratch", (), 2 * math.log(50_257)),
        ("finetune", (), 10.0),
        ("from_scratch", ("guards.first_validation_cap=9.0",), 9.0),
        ("finetune", ("guards.first_validation_cap=9.0",), 9.0),
    ],
)
def test_the_cap_of_the_first_validation_is_the_modes_or_the_users(
    mode: str, overrides: tuple[str, ...], cap: float
) -> None:
    told = config(*overrides, steps=1, mode=mode)
    assert first_validation_cap(told, with_baselines()) == pytest.approx(cap)
    assert loop_settings(told, with_baselines()).first_validation_cap == pytest.approx(cap)


def test_from_scratch_without_a_vocabulary_has_no_cap() -> None:
    assert first_validation_cap(config(steps=1, mode="from_scratch"), toy()) is None


def test_a_target_is_a_number_or_a_baseline_that_the_data_have() -> None:
    assert target_value(config(steps=1), toy()) is None
    assert target_value(config(steps=1, target=3.25), toy()) == 3.25
    assert target_value(config(steps=1, target="unigram_entropy"), with_baselines()) == 6.5
    with pytest.raises(InputError, match=r"train\.target: 'unigram_entropy' is not known for .*; known: none"):
        target_value(config(steps=1, target="unigram_entropy"), toy())
