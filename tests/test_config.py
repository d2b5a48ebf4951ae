from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trainwright import yamlfile
from trainwright.config import Interval, RunConfig
from trainwright.errors import DataError, InputError, about

LEAST: dict[str, Any] = {"model": {"type": "lm"}, "train": {"steps": 3, "learning_rate": 1e-3}}


def config(*overrides: str, **sections: Any) -> RunConfig:
    return RunConfig.parse({**LEAST, **sections}, overrides)


def refusal(tmp_path: Path, text: str, *overrides: str) -> str:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        RunConfig.load(file, overrides)
    return str(caught.value).replace(str(file), "run.yaml")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("  step: 5", "run.yaml:5: unknown key 'train.step'; did you mean 'steps'?"),
        ("  batch_size: 0", "run.yaml:5: train.batch_size: found 0; input should be greater than or equal to 1"),
        ("  batch_size: many", "run.yaml:5: train.batch_size: found 'many'; input should be a valid integer"),
        ("  batch_size: true", "run.yaml:5: train.batch_size: found true; expected no yes or no here"),
        ("  accumulate: 1.5", "run.yaml:5: train.accumulate: found 1.5; input should be a valid integer"),
        ("  clip_norm: .inf", "run.yaml:5: train.clip_norm: found inf; input should be a finite number"),
        ("  precision: fp8", "run.yaml:5: train.precision: found 'fp8'; input should be 'fp32' or 'bf16'"),
        ("  target: entropy", "run.yaml:5: train.target: found 'entropy'; input should be a valid number"),
        ("  tokens: 9", "run.yaml:2: train: expected one budget of steps, tokens, samples, epochs or env_steps"),
        ("schedule: {kind: cos}", "run.yaml:5: schedule.kind: found 'cos'; input should be 'cosine', 'linear'"),
        ("optimizer: {betas: [0.9, 1.0]}", "run.yaml:5: optimizer.betas.1: found 1.0; input should be less than 1"),
        ("validate: {evry: 5}", "run.yaml:5: unknown key 'validate.evry'; did you mean 'every'?"),
        ("validate: {every: 0}", "run.yaml:5: validate.every: expected a number of steps or epochs"),
        ("checkpoint: {every: 5 days}", "run.yaml:5: checkpoint.every: expected a number of steps or epochs"),
        ("early_stopping: {}", "run.yaml:5: key 'early_stopping.patience' is missing"),
        (
            "early_stopping: {patience: 1, standard_errors: -1}",
            "run.yaml:5: early_stopping.standard_errors: found -1; input should be greater than or equal to 0",
        ),
        ("  sanity: often", "run.yaml:5: train.sanity: found 'often'; input should be a valid boolean"),
        (
            "guards: {explosion: {polisy: off}}",
            "run.yaml:5: unknown key 'guards.explosion.polisy'; did you mean 'pol",
        ),
        ("guards: {divergence_ratio: 1}", "run.yaml:5: guards.divergence_ratio: found 1; input should be greater"),
        ("device: gpu", "run.yaml:5: device: device 'gpu' is not one of: cpu, cuda, cuda:0 … cuda:15, auto (grammar"),
        ("seed: -1", "run.yaml:5: seed: found -1; input should be greater than or equal to 0"),
        ("name: My Run", "run.yaml:5: name: found 'My Run'; string should match pattern"),
        ("modell: {}", "run.yaml:5: unknown key 'modell'; did you mean 'model'?"),
        ("data: 5", "run.yaml:5: data: found 5; expected a mapping of keys to values"),
    ],
)
def test_each_error_names_file_line_key_and_what_was_expected(tmp_path: Path, line: str, message: str) -> None:
    text = f"model: {{type: lm}}\ntrain:\n  steps: 3\n  learning_rate: 1e-3\n{line}\n"
    assert refusal(tmp_path, text).startswith(message)


def test_a_run_without_a_model_or_a_budget_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, "train: {steps: 1, learning_rate: 1.0}\n") == "run.yaml: key 'model' is missing"
    assert "train: expected one budget" in refusal(tmp_path, "model: {type: lm}\ntrain: {learning_rate: 1.0}\n")


@pytest.mark.parametrize(
    ("train", "fine"),
    [
        ({"steps": 1}, True),
        ({"tokens": 1}, True),
        ({"samples": 1}, True),
        ({"epochs": 1}, True),
        ({"seconds": 0.5}, True),
        ({"steps": 1, "seconds": 0.5}, True),
        ({"steps": 1, "epochs": 1}, False),
        ({"tokens": 1, "samples": 1}, False),
        ({}, False),
    ],
)
def test_there_is_one_budget_and_a_time_limit_may_stand_beside_it(train: dict[str, Any], fine: bool) -> None:
    if fine:
        config(train={"learning_rate": 1.0, **train})
    else:
        with pytest.raises(InputError, match=r"expected one budget of .*found (none|\w+ and \w+)"):
            config(train={"learning_rate": 1.0, **train})


def test_a_learning_rate_comes_from_the_user_or_from_a_mode() -> None:
    with pytest.raises(InputError, match="expected learning_rate, or a mode that sets it"):
        config(train={"steps": 1})


def test_overrides_are_typed_by_the_schema_and_win_over_the_file() -> None:
    given = config(
        *("train.steps=50", "train.learning_rate=3e-4", "train.compile=true", "schedule.milestones=[5, 9]"),
        *("validate.every=2 epochs", "early_stopping.patience=2", "name=7b", "model.width=64"),
    )
    assert (given.train.steps, given.train.learning_rate, given.train.compile) == (50, 3e-4, True)
    assert given.schedule.milestones == (5, 9)
    assert given.validate_.every == Interval(2, "epochs")
    assert given.early_stopping is not None
    assert given.early_stopping.patience == 2
    assert given.model.options() == {"width": 64}


def test_a_wrong_override_is_named_as_the_argument_that_it_is(tmp_path: Path) -> None:
    text = "model: {type: lm}\ntrain: {steps: 3, learning_rate: 1e-3}\n"
    assert refusal(tmp_path, text, "train.step=9") == (
        "argument 'train.step=9': unknown key 'train.step'; did you mean 'steps'?"
    )


def test_a_key_is_told_with_its_file_and_line_or_the_mapping_or_argument_that_gave_it(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("model: {type: lm}\ntrain:\n  steps: 3\n  learning_rate: 1e-3\n")
    loaded = RunConfig.load(file, ["schedule.kind=linear"])
    assert loaded.told("train.steps", "too few") == f"{file}:3: train.steps: too few"
    assert loaded.told("train.target", "unknown") == f"{file}:2: train.target: unknown"
    assert loaded.told("schedule.kind", "no end") == "argument 'schedule.kind=linear': schedule.kind: no end"
    assert loaded.told("contract", "none") == f"{file}: contract: none"
    assert loaded.resolved().told("train.steps", "too few") == loaded.told("train.steps", "too few")
    assert config().told("train.steps", "too few") == "run config: train.steps: too few"


def test_an_error_keeps_its_kind_and_begins_with_the_key_that_it_is_about() -> None:
    with pytest.raises(DataError, match=r"^run config: data: gone$"), config().at("data"):
        raise DataError("gone")
    with pytest.raises(DataError, match=r"^run config: data\.path: gone$"), config().at("model"), about("data.path"):
        raise DataError("gone")
    with pytest.raises(ZeroDivisionError, match=r"^zero$"), config().at("model"), about("data.path"):
        raise ZeroDivisionError("zero")


@pytest.mark.parametrize(
    ("mode", "learning_rate", "warmup", "target", "cap"),
    [("from_scratch", 3e-4, 1000, 3.0, None), ("finetune", 5e-5, 100, 2.2, 10.0)],
)
def test_a_mode_sets_four_values_together(
    mode: str, learning_rate: float, warmup: int, target: float, cap: float | None
) -> None:
    before = config(train={"mode": mode, "steps": 1})
    after = before.resolved()
    assert (after.train.learning_rate, after.train.target) == (learning_rate, target)
    assert (after.schedule.warmup_steps, after.guards.first_validation_cap) == (warmup, cap)
    assert set(before.explicit().values()) == {False}


@pytest.mark.parametrize("mode", ["from_scratch", "finetune"])
def test_explicit_values_win_over_the_modes_and_are_told_apart(mode: str) -> None:
    given = config(
        train={"mode": mode, "steps": 1, "learning_rate": 7e-3, "target": "unigram_entropy"},
        schedule={"warmup_steps": 0},
        guards={"first_validation_cap": 9.0},
    )
    after = given.resolved()
    assert (after.train.learning_rate, after.train.target) == (7e-3, "unigram_entropy")
    assert (after.schedule.warmup_steps, after.guards.first_validation_cap) == (0, 9.0)
    assert set(given.explicit().values()) == {True}


def test_without_a_mode_nothing_is_filled_in() -> None:
    assert config().resolved() == config()


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        (200, Interval(200)),
        ("200", Interval(200)),
        ("1 step", Interval(1)),
        ("200 steps", Interval(200)),
        ("5 epochs", Interval(5, "epochs")),
        ("1 epoch", Interval(1, "epochs")),
    ],
)
def test_an_interval_is_written_in_steps_or_epochs(text: object, interval: Interval) -> None:
    assert config(checkpoint={"every": text}).checkpoint.every == interval


@pytest.mark.parametrize("text", [0, -1, "0 steps", "1.5 epochs", "5 days", "epochs", "", True, "5  epochs", 2.0])
def test_what_is_no_interval_is_refused(text: object) -> None:
    with pytest.raises(InputError, match=r"checkpoint\.every: (expected a number of steps or epochs|found true)"):
        config(checkpoint={"every": text})


def test_an_interval_in_epochs_becomes_steps_by_the_steps_of_an_epoch() -> None:
    assert Interval(3, "epochs").in_steps(7) == 21
    assert Interval(3).in_steps(7) == 3


SECTIONS = st.fixed_dictionaries(
    {
        "model": st.fixed_dictionaries({"type": st.just("lm"), "width": st.integers(1, 9)}),
        "train": st.fixed_dictionaries(
            {"steps": st.integers(1, 9), "mode": st.sampled_from(["from_scratch", "finetune"])},
            optional={
                "learning_rate": st.floats(1e-12, 1.0),
                "clip_norm": st.none() | st.floats(1e-3, 9.0),
                "target": st.just("unigram_entropy") | st.floats(0.1, 9.0),
                "seconds": st.floats(0.1, 1e9),
            },
        ),
    },
    optional={
        "name": st.from_regex(r"[a-z0-9][a-z0-9_-]{0,8}", fullmatch=True) | st.sampled_from(["1e5", "no", "0x1f"]),
        "seed": st.integers(0, 2**63 - 1),
        "schedule": st.fixed_dictionaries({"milestones": st.lists(st.integers(0, 99), max_size=3)}),
        "checkpoint": st.fixed_dictionaries({"every": st.sampled_from([7, "3 epochs", "1 step"])}),
        "validate": st.fixed_dictionaries({"at_start": st.booleans()}),
    },
)


@given(SECTIONS)
def test_the_resolved_file_reads_back_as_the_same_run_with_the_same_hash(sections: dict[str, Any]) -> None:
    resolved = RunConfig.parse(sections).resolved()
    again = RunConfig.from_document(yamlfile.parse(resolved.to_yaml(), "run.yaml"))
    assert again.to_dict() == resolved.to_dict() == again.resolved().to_dict()
    assert again.sha256() == resolved.sha256()


def test_the_hash_depends_on_values_alone(tmp_path: Path) -> None:
    texts = (
        "model: {type: lm, width: 4}\ntrain: {steps: 3, learning_rate: 1e-3}\n",
        "# a comment\ntrain:\n  learning_rate: 0.001\n  steps: 3\nmodel: {width: 4, type: lm}\n",
    )
    files = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    first, second = map(RunConfig.load, files)
    assert first.sha256() == second.sha256()
    assert first.sha256() != RunConfig.load(files[0], ["seed=1"]).sha256()


def test_keys_that_came_later_count_from_when_they_are_given_so_that_earlier_runs_keep_their_hash() -> None:
    data = {"model": {"type": "lm", "width": 4}, "train": {"steps": 3, "learning_rate": 1e-3}}
    assert RunConfig.parse(data).sha256() == (
        "8002641322ff22b19a5c5dc17c2d304d9225bc5bf7f36b3b873229bda880b1f1"  # as it was before there was a store
    )
    given = [RunConfig.parse(data, [change]) for change in ("checkpoint.store=file:///a", "register.name=a")]
    assert len({RunConfig.parse(data).sha256(), *(one.sha256() for one in given)}) == 3


@pytest.mark.parametrize(
    "url", ["bucket", "s3://key:secret@bucket/x", "s3://key@bucket", "https://host/x?signature=secret", "memory"]
)
def test_a_store_is_named_by_a_url_that_holds_no_key(url: str) -> None:
    with pytest.raises(InputError, match=r"checkpoint\.store: .*expected the URL of a store"):
        config(f"checkpoint.store={url}")
    assert config("checkpoint.store=s3://bucket/a/b").checkpoint.store == "s3://bucket/a/b"


def test_differences_name_each_key_with_both_values() -> None:
    assert config("train.steps=4", "model.width=8").differences(config()) == {
        "train.steps": (4, 3),
        "model.width": (8, None),
    }


def test_a_configuration_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        config().seed = 3  # type: ignore[misc]  # the point
