"""A run from its configuration to its result: parents, conditions, damaged checkpoints, and what is on record of it."""

import json
import math
import os
import re
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from tests.acceptance import full_disk, harness
from tests.toys import Toy
from trainwright import app, guards, runs
from trainwright.checkpoints.checkpoints import Checkpoints
from trainwright.checkpoints.filesystem import FileStore
from trainwright.cli import listing
from trainwright.config import RunConfig
from trainwright.contract import fixtures
from trainwright.contract.expressions import connect
from trainwright.contract.judge import judge_gate
from trainwright.contract.load import load_contract
from trainwright.contract.readings import registered
from trainwright.contract.run import judge_run
from trainwright.device import cuda_devices
from trainwright.errors import (
    DamagedCheckpointError,
    DataError,
    DeviceUnavailableError,
    InputError,
    StoreError,
    TrainwrightError,
)
from trainwright.files import sha256_of_file
from trainwright.jsonfile import read_json
from trainwright.outcome import Outcome
from trainwright.report import write_report
from trainwright.rundir import RunDirectory
from trainwright.runs import RunResult
from trainwright.state import StateValue
from trainwright.timestamps import now
from trainwright.trainable import Metric, Validation

CONTRACT = "training-loop-pretrain-v1"
KILLED_AT = 33  # the newest checkpoints are then those of the steps 28 and 21


def execute(runs_dir: Path, **changes: Any) -> RunResult:
    return runs.execute(RunConfig.parse(harness.config(**changes)), runs_dir=runs_dir)


def short(runs_dir: Path, **changes: Any) -> RunDirectory:
    return execute(runs_dir, **{"train__steps": 20, "checkpoint": {}, **changes}).run


def events(run: RunDirectory, kind: str) -> list[Mapping[str, Any]]:
    return [event.detail for event in run.read_events() if event.kind == kind]


def killed(runs_dir: Path, values: Mapping[str, Any], step: int = KILLED_AT) -> RunDirectory:
    child = harness.start(harness.train_killed_after, step, values, runs_dir)
    assert harness.finish(child) == -signal.SIGKILL
    return harness.only_run(runs_dir)


def copied(run: RunDirectory, folder: Path) -> RunDirectory:
    """Give a copy of a run that a test may change; it keeps its id."""
    return RunDirectory(Path(shutil.copytree(run.path, folder / run.id)))


@pytest.fixture(scope="module")
def uncut(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return execute(tmp_path_factory.mktemp("uncut"), train__steps=60).run


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Give the run that `uncut` would be, had it not been killed."""
    return killed(tmp_path_factory.mktemp("cut"), harness.config(train__steps=60))


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return harness.token_shards(tmp_path_factory.mktemp("shards"))


@pytest.fixture(scope="module")
def judged(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """Give a run of a language model under the shipped contract; all of its gates hold."""
    values = harness.language_model(shards, contract=CONTRACT, train__target="unigram_entropy")
    return runs.execute(RunConfig.parse(values), runs_dir=tmp_path_factory.mktemp("judged"))


# -- going on with a run ---------------------------------------------------------------------------------------------


def test_a_finished_run_is_refused_by_resume_with_what_to_do_and_stays_as_it_is(uncut: RunDirectory) -> None:
    advice = rf"{uncut.id}: has ended \(done: .*\) and stays as it is; .*: trainwright resume {uncut.id} train\.steps="
    with harness.left_as_it_was(uncut.path), pytest.raises(InputError, match=advice):
        app.resume(uncut.path)


def test_an_aborted_run_is_refused_by_resume(tmp_path: Path) -> None:
    result = execute(tmp_path, train__steps=20, model__nan_at_step=15)
    assert result.outcome is Outcome.ABORTED
    with harness.left_as_it_was(result.run.path), pytest.raises(InputError, match=r"has ended .aborted: step 15"):
        runs.resume(result.run)


def test_a_resume_with_overrides_is_a_new_run_that_names_its_parent_and_every_change(
    uncut: RunDirectory, tmp_path: Path
) -> None:
    with harness.left_as_it_was(uncut.path):
        overrides = ["train.steps=80", "train.batch_size=16", "optimizer.implementation=foreach"]
        result = app.resume(uncut.path, overrides, runs_dir=tmp_path)
    child, [attempt] = result.run, result.run.attempts()
    assert child.id != uncut.id
    assert (attempt.start().parent, attempt.start().checkpoint) == (uncut.id, "step-00000060.a1")
    assert read_json(child.result)["parent"] == uncut.id
    assert [row.step for row in child.read_steps()] == list(range(60, 80))
    assert events(child, "resumed") == [{"checkpoint": "step-00000060.a1", "run": uncut.id}]
    [not_exact] = events(child, "not_exact")
    assert not_exact["changed"] == {
        "batch_size": [32, 16],
        "optimizer_implementation": ["fused", "foreach"],
        "train.steps": [60, 80],
        "train.batch_size": [32, 16],
        "optimizer.implementation": ["fused", "foreach"],
    }


def test_a_larger_budget_alone_goes_on_as_the_longer_run_would_have(tmp_path: Path) -> None:
    """With a constant rate the budget changes nothing but the end."""
    values = {"schedule__kind": "constant", "checkpoint": {}}
    whole = execute(tmp_path / "whole", train__steps=60, **values).run
    parent = execute(tmp_path / "parts", train__steps=40, **values).run
    child = app.resume(parent.path, ["train.steps=60"], runs_dir=tmp_path / "parts").run
    assert events(child, "not_exact") == [{"changed": {"train.steps": [40, 60]}}]
    assert harness.last_tensors(child) == harness.last_tensors(whole)


def test_a_child_killed_before_its_first_checkpoint_starts_again_from_its_parents(
    uncut: RunDirectory, tmp_path: Path
) -> None:
    parent = copied(uncut, tmp_path)
    overrides = ["train.steps=80", "checkpoint.every=1000", "validate.every=1000", "validate.at_start=false"]
    whole = app.resume(parent.path, overrides, runs_dir=tmp_path / "whole").run
    before = harness.run_ids(tmp_path)
    child = harness.start(harness.go_on_killed_after, 70, parent.path, overrides, tmp_path)
    assert harness.finish(child) == -signal.SIGKILL
    [name] = harness.run_ids(tmp_path) - before
    cut = RunDirectory(tmp_path / name)
    assert not list(cut.checkpoints.glob("step-*"))
    with harness.left_as_it_was(parent.path):
        assert runs.resume(cut).outcome is Outcome.DONE
    assert [attempt.start().parent for attempt in cut.attempts()] == [parent.id, parent.id]
    assert read_json(cut.result)["parent"] == parent.id
    assert harness.timeless_rows(cut) == harness.timeless_rows(whole)
    assert harness.last_tensors(cut) == harness.last_tensors(whole)


def test_a_parent_whose_checkpoints_are_all_damaged_is_refused_and_leaves_no_directory(
    uncut: RunDirectory, tmp_path: Path
) -> None:
    parent = copied(uncut, tmp_path / "parent")
    for file in parent.checkpoints.glob("*/model.safetensors"):
        file.write_bytes(b"")
    with harness.left_as_it_was(parent.path), pytest.raises(StoreError, match="every checkpoint is damaged"):
        app.resume(parent.path, ["train.steps=80"], runs_dir=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_parent_of_another_architecture_is_refused_and_leaves_no_directory(
    uncut: RunDirectory, tmp_path: Path
) -> None:
    with harness.left_as_it_was(uncut.path), pytest.raises(InputError, match=r"layers\.0\.weight has shape \[16, 64\]"):
        app.resume(uncut.path, ["train.steps=80", "model.hidden=24"], runs_dir=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_data_of_a_child_that_differ_from_the_parents_are_on_record(shards: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(shards, tmp_path / "shards"))
    parent = runs.execute(RunConfig.parse(harness.language_model(own, train__steps=5)), runs_dir=tmp_path / "runs").run
    changed_data(own)
    child = app.resume(parent.path, ["train.steps=8"], runs_dir=tmp_path / "runs").run
    [not_exact] = events(child, "not_exact")
    hashes = [read_json(run.environment)["hashes"]["data"] for run in (parent, child)]
    assert hashes[0] != hashes[1]
    assert not_exact["changed"] == {"train.steps": [5, 8], "data": hashes}


def test_other_threads_at_a_resume_are_recorded_as_not_exact(tmp_path: Path) -> None:
    values = harness.config(train={"steps": 60, "learning_rate": 1e-2, "batch_size": 32})
    child = harness.start(harness.on_threads, 1, harness.train_killed_after, KILLED_AT, values, tmp_path)
    assert harness.finish(child) == -signal.SIGKILL
    assert harness.finish(harness.start(harness.on_threads, 2, harness.resume, tmp_path)) == 0
    assert events(harness.only_run(tmp_path), "not_exact") == [{"changed": {"threads": [1, 2]}}]


def test_equal_conditions_at_a_resume_leave_no_such_record(cut: RunDirectory, tmp_path: Path) -> None:
    run = copied(cut, tmp_path)
    assert runs.resume(run).outcome is Outcome.DONE
    assert events(run, "not_exact") == []


def test_a_run_that_another_process_trains_is_refused(cut: RunDirectory, tmp_path: Path) -> None:
    run, ready = copied(cut, tmp_path), tmp_path / "ready"
    holder = harness.start(harness.hold, run, ready)
    harness.until(ready.exists, holder)
    with harness.left_as_it_was(run.path), pytest.raises(InputError, match="another process is training this run"):
        runs.resume(run)
    harness.kill(holder)
    assert runs.resume(run).outcome is Outcome.DONE


def test_data_that_changed_since_are_refused_and_nothing_is_written(shards: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(shards, tmp_path / "shards"))
    run = killed(tmp_path / "runs", harness.language_model(own))
    changed_data(own)
    with harness.left_as_it_was(tmp_path), pytest.raises(DataError, match="data are not those") as refused:
        runs.resume(run)
    assert refused.value.exit_code == 6


def changed_data(folder: Path) -> None:
    """Change one token of the training data."""
    data = bytearray((folder / "train.bin").read_bytes())
    data[400] ^= 1
    (folder / "train.bin").write_bytes(data)


# -- damaged checkpoints ---------------------------------------------------------------------------------------------


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def shortened(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def flipped(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", emptied),
        ("optimizer.safetensors", flipped),
        ("rest.safetensors", shortened),
        ("state.json", Path.unlink),
        ("manifest.json", flipped),
    ],
)
def test_a_damaged_newest_checkpoint_is_set_aside_on_record_and_the_run_equals_the_uncut_one(
    name: str, damage: Callable[[Path], object], uncut: RunDirectory, cut: RunDirectory, tmp_path: Path
) -> None:
    run = copied(cut, tmp_path)
    newest = "step-00000028.a1"
    damage(run.checkpoints / newest / name)
    assert runs.resume(run).outcome is Outcome.DONE
    [rejected] = events(run, "checkpoint_rejected")
    assert rejected["checkpoint"] == newest
    assert f"{newest}/{name}" in rejected["reason"]
    assert run.attempts()[1].start().checkpoint == "step-00000021.a1"
    harness.assert_equal_to(uncut, run)


def test_a_checkpoint_set_aside_keeps_its_files_and_its_reason(cut: RunDirectory, tmp_path: Path) -> None:
    run = copied(cut, tmp_path)
    folder = run.checkpoints / "step-00000028.a1"
    flipped(folder / "model.safetensors")
    with_damage = harness.contents(folder)
    runs.resume(run)
    kept = dict(harness.contents(folder))
    del kept["retired.json"]
    assert kept == with_damage
    assert "model.safetensors" in read_json(folder / "retired.json")["reason"]


ENTRIES: Mapping[str, StateValue] = {
    "rng.python": [3, [1, 2], None],
    "rng.numpy": ["MT19937", [1], 0, 0, 0.0],
    "rng.torch": torch.zeros(3, dtype=torch.uint8),
}


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("missing", [True, False], ids=["missing", "damaged"])
def test_a_random_stream_that_cannot_be_taken_up_is_an_error_that_names_it(
    missing: bool, name: str, cut: RunDirectory, tmp_path: Path
) -> None:
    run = copied(cut, tmp_path)
    save_again(run, lambda state: state.pop(name) if missing else state.update({name: ENTRIES[name]}))
    with pytest.raises(DamagedCheckpointError, match=f"entry '{name}'") as refused:
        runs.resume(run)
    assert refused.value.exit_code == 7
    assert len(run.attempts()) == 1, "nothing was begun"


def save_again(run: RunDirectory, change: Callable[[dict[str, StateValue]], object]) -> None:
    """Save the newest checkpoint once more, one step later, with another state: sound in every hash."""
    checkpoints = Checkpoints(FileStore(run.checkpoints))
    manifest, state = checkpoints.load(checkpoints.candidates()[0])
    change(state)
    checkpoints.write(state, step=manifest.step + 1, stamp=manifest.stamp, time=now()).commit()


def test_a_run_whose_record_was_edited_is_refused_for_its_rows_would_be_of_two_runs(tmp_path: Path) -> None:
    run = killed(tmp_path, harness.config())
    run.config.write_text(run.config.read_text().replace("seed: 7", "seed: 9"))
    with (
        harness.left_as_it_was(run.path),
        pytest.raises(InputError, match=r"run\.yaml: was changed since the run began"),
    ):
        runs.resume(run)


def test_a_run_that_lost_its_contract_is_neither_resumed_nor_judged_as_if_it_had_none(tmp_path: Path) -> None:
    run = killed(tmp_path, harness.config(contract="training-loop-pretrain-v1"))
    run.contract.unlink()
    for use in (runs.resume, judge_run):
        with pytest.raises(InputError, match=r"contract\.yaml: is missing, and .* names contract"):
            use(run)


def test_a_run_directory_that_cannot_be_filled_is_an_error_before_step_0_and_leaves_nothing(tmp_path: Path) -> None:
    child = harness.start(full_disk.refused_with_small_files, harness.config(), tmp_path, 200)
    assert harness.finish(child) == 7
    assert list(tmp_path.iterdir()) == []


def test_a_run_whose_every_checkpoint_is_damaged_is_refused_and_its_rows_stand(tmp_path: Path) -> None:
    run = killed(tmp_path, harness.config())
    for file in run.checkpoints.glob("*/model.safetensors"):
        flipped(file)
    with harness.left_as_it_was(run.path), pytest.raises(StoreError, match="every checkpoint is damaged"):
        runs.resume(run)


def test_a_child_says_which_checkpoints_of_its_parent_it_passed_over(uncut: RunDirectory, tmp_path: Path) -> None:
    parent = copied(uncut, tmp_path)
    newest = max(parent.checkpoints.glob("*/model.safetensors"))
    flipped(newest)
    with harness.left_as_it_was(parent.path):
        child = app.resume(parent.path, ["train.steps=62"], runs_dir=tmp_path / "runs").run
    assert [detail["checkpoint"] for detail in events(child, "checkpoint_rejected")] == [newest.parent.name]


def test_the_seconds_of_a_resumed_run_are_those_of_all_its_attempts(tmp_path: Path) -> None:
    run = killed(tmp_path, harness.config(train__steps=40), step=36)
    runs.resume(run)
    seconds = read_json(run.result)["seconds"]
    rows = sum(row.wall_ms for row in run.read_steps() if row.step < 35) / 1000
    assert seconds["training"] > rows, "attempt 1's steps up to its last save are among them"


def test_the_time_and_validations_of_a_parent_are_not_the_child_s(uncut: RunDirectory, tmp_path: Path) -> None:
    child = app.resume(uncut.path, ["train.steps=62"], runs_dir=tmp_path).run
    validations = child.read_validations()
    assert [row.step for row in validations] == [60, 62]
    assert validations[0].is_best, "the first of this run"
    result = read_json(child.result)
    assert result["best_validation"] == min(row.value for row in validations)
    assert (child.checkpoints / result["best_checkpoint"] / "model.safetensors").exists()
    own, of_parent = (read_json(run.result)["seconds"]["elapsed"] for run in (child, uncut))
    assert own < of_parent, "2 steps against 60"


def test_a_child_whose_budget_its_parent_has_used_is_refused(uncut: RunDirectory, tmp_path: Path) -> None:
    message = r"argument 'train\.steps=60': train\.steps: a budget of 60 steps leaves none: .* has taken 60; give more"
    with pytest.raises(InputError, match=message):
        app.resume(uncut.path, ["train.steps=60"], runs_dir=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_an_aborted_run_is_the_parent_of_one_that_goes_on_from_its_last_good_checkpoint(tmp_path: Path) -> None:
    bad = execute(tmp_path, model__nan_at_step=30)
    assert bad.outcome is Outcome.ABORTED
    good = app.resume(bad.run.path, ["model.nan_at_step=null", "train.steps=40"], runs_dir=tmp_path)
    assert (good.outcome, good.step) == (Outcome.DONE, 40)
    assert good.run.read_steps()[0].step == 28


class Wordy(Toy):
    """Gives metrics that it does not declare."""

    given: Mapping[str, float] = {"extra": 1.0}

    def collect_metrics(self) -> Mapping[str, float]:
        return self.given


def test_a_metric_that_was_not_declared_ends_the_run_and_is_in_no_row(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"collect_metrics gave \['extra'\], declared are \[\]"):
        execute(tmp_path, model__type="tests.test_runs:Wordy")
    assert harness.only_run(tmp_path).read_steps() == []


class Measuring(Toy):
    """Measures more than its loss at a validation; `given` is what it gives of what it declares."""

    given: Mapping[str, float | None] = {"spread": math.nan, "later": None}

    @property
    def validation_measures(self) -> Sequence[Metric]:
        return Metric("spread", "1"), Metric("later", "1")

    def validate(self) -> Validation:
        return replace(super().validate(), measures=self.given)


class Silently(Measuring):
    given: Mapping[str, float | None] = {"spread": 1.0}


MEASURING = """
id: measuring-v1
version: 1.0.0
title: What is measured beside the loss
purpose: A test
changelog: [{version: 1.0.0, changes: [GATE-M-001]}]
metrics:
  - {name: spread, unit: "1", since: 1.0.0, table: validations, meaning: spread}
gates:
  - id: GATE-M-001
    claim: the spread is a number
    rows: validations
    figures: {bad: count(*) filter (where not isfinite(spread))}
    holds: bad = 0
    fixtures: {good: [{validations: {spread: 1.0}}], bad: [{validations: {spread: .nan}}]}
"""


def test_what_a_validation_measures_beside_its_value_is_in_its_row_and_a_gate_decides_by_it(tmp_path: Path) -> None:
    contract = tmp_path / "measuring.yaml"
    contract.write_text(MEASURING)
    result = execute(tmp_path, model__type="tests.test_runs:Measuring", contract=str(contract), train__steps=2)
    row = result.run.read_validations()[-1]
    assert math.isnan(row.measures["spread"] or 0.0)
    assert row.measures["later"] is None
    assert result.run.attempts()[0].start().measures == {"spread": "1", "later": "1"}
    assert [(verdict.gate, verdict.result) for verdict in result.verdicts] == [("GATE-M-001", "fail")]


def test_a_measure_that_was_declared_and_not_given_ends_the_run(tmp_path: Path) -> None:
    message = r"validate gave the measures \['spread'\], declared are \['later', 'spread'\]"
    with pytest.raises(InputError, match=message):
        execute(tmp_path, model__type="tests.test_runs:Silently")
    assert harness.only_run(tmp_path).read_validations() == []


def test_a_run_that_will_not_record_what_its_contract_requires_is_refused_before_a_directory_is_made(
    tmp_path: Path,
) -> None:
    contract = tmp_path / "measuring.yaml"
    contract.write_text(MEASURING)
    with pytest.raises(
        InputError, match=r"measuring-v1 1\.0\.0 requires .* does not record: spread \(of validations\)"
    ):
        execute(tmp_path / "runs", contract=str(contract))
    assert not (tmp_path / "runs").exists()


# -- weights of an earlier run ---------------------------------------------------------------------------------------


def first_weights(run: RunDirectory) -> bytes:
    return (run.checkpoints / "step-00000000.a1" / "model.safetensors").read_bytes()


def test_init_takes_every_weight_and_nothing_else_of_an_earlier_run(uncut: RunDirectory, tmp_path: Path) -> None:
    with harness.left_as_it_was(uncut.path):
        begun = short(tmp_path, train__init=str(uncut.path), train__steps=1, seed=8)
    fresh = short(tmp_path, train__steps=1, seed=8)
    assert first_weights(begun) == harness.last_tensors(uncut)["model.safetensors"] != first_weights(fresh)
    assert begun.read_validations()[0].value == uncut.read_validations()[-1].value
    assert not (begun.checkpoints / "step-00000000.a1" / "optimizer.safetensors").exists()
    assert begun.read_steps()[0].step == 0


def test_init_finds_its_run_beside_the_others_and_records_what_it_took(tmp_path: Path) -> None:
    source = short(tmp_path)
    begun = short(tmp_path, train__init="latest", train__steps=1)
    best = [row.checkpoint for row in source.read_validations() if row.is_best][-1]
    taken = begun.attempts()[0].start().init
    assert taken is not None
    assert (taken["run"], taken["checkpoint"]) == (str(source.path), best)
    assert taken["weights_sha256"] == sha256_of_file(source.checkpoints / best / "model.safetensors")
    assert begun.read_events()[0].detail == {"init": taken}


def test_init_takes_the_newest_weights_where_the_best_are_damaged_and_says_so(
    uncut: RunDirectory, tmp_path: Path
) -> None:
    source = copied(uncut, tmp_path)
    save_again(source, lambda state: state)
    best = [row.checkpoint for row in source.read_validations() if row.is_best][-1]
    flipped(source.checkpoints / best / "model.safetensors")
    begun = short(tmp_path / "runs", train__init=str(source.path), train__steps=1)
    assert [e.detail["checkpoint"] for e in begun.read_events() if e.kind == "checkpoint_rejected"] == [best]


def test_a_run_with_init_killed_before_its_first_checkpoint_takes_the_same_weights_again(
    uncut: RunDirectory, tmp_path: Path
) -> None:
    changes = {"train__init": str(uncut.path), "train__steps": 20, "validate__at_start": False, "checkpoint": {}}
    whole = execute(tmp_path / "whole", **changes).run
    cut = killed(tmp_path / "cut", harness.config(**changes), step=5)
    assert runs.resume(cut).outcome is Outcome.DONE
    assert harness.last_tensors(cut) == harness.last_tensors(whole)


def test_a_resume_needs_no_longer_the_run_that_init_named(uncut: RunDirectory, tmp_path: Path) -> None:
    source = copied(uncut, tmp_path)
    run = killed(tmp_path / "runs", harness.config(train__init=str(source.path), train__steps=60))
    shutil.rmtree(source.path)
    assert runs.resume(run).outcome is Outcome.DONE
    assert app.resume(run.path, ["train.steps=62"], runs_dir=tmp_path).step == 62


def test_init_beside_a_parent_is_refused_for_the_parent_has_the_weights(uncut: RunDirectory, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"train\.init: a run that goes on from another has its weights"):
        app.resume(uncut.path, ["train.steps=80", f"train.init={uncut.path}"], runs_dir=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def without_last_layer(state: dict[str, StateValue]) -> None:
    del state["model.layers.3.weight"]


def with_another_tensor(state: dict[str, StateValue]) -> None:
    state["model.layers.9.weight"] = torch.zeros(1)


def with_another_shape(state: dict[str, StateValue]) -> None:
    state["model.layers.0.weight"] = torch.zeros(16, 65)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_last_layer, r"layers\.3\.weight is missing"),
        (with_another_tensor, r"layers\.9\.weight is not in this model"),
        (with_another_shape, r"layers\.0\.weight has shape \[16, 65\], this model's is \[16, 64\]"),
    ],
)
def test_init_with_weights_that_do_not_match_names_the_tensor_and_leaves_no_directory(
    change: Callable[[dict[str, StateValue]], None], message: str, uncut: RunDirectory, tmp_path: Path
) -> None:
    source = copied(uncut, tmp_path)
    save_again(source, change)
    flipped(source.checkpoints / source.read_validations()[-1].checkpoint / "model.safetensors")
    with harness.left_as_it_was(source.path), pytest.raises(InputError, match=message):
        short(tmp_path / "runs", train__init=str(source.path))
    assert not (tmp_path / "runs").exists()


def test_init_of_another_architecture_names_the_field_and_leaves_no_directory(
    uncut: RunDirectory, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="another architecture: hidden 16 there, 24 here"):
        short(tmp_path / "runs", train__init=str(uncut.path), model__hidden=24)
    assert not (tmp_path / "runs").exists()


def test_init_of_a_run_without_a_valid_checkpoint_never_means_random_weights(
    uncut: RunDirectory, tmp_path: Path
) -> None:
    source = copied(uncut, tmp_path)
    for file in source.checkpoints.glob("*/model.safetensors"):
        flipped(file)
    with pytest.raises(StoreError, match=r"train\.init: .* every checkpoint is damaged"):
        short(tmp_path / "runs", train__init=str(source.path))
    assert not (tmp_path / "runs").exists()


# -- errors before the first step ------------------------------------------------------------------------------------

LM = {"type": "lm", "layers": 1, "width": 8, "heads": 1, "context": 8}


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"model__hiden": 3}, InputError, r"unknown key 'model\.hiden'; did you mean 'hidden'\?"),
        ({"model": {"type": "tests.toys:Tony"}}, InputError, "did you mean 'Toy'"),
        ({"model": LM, "data": {"path": "/no/such/folder"}}, DataError, "/no/such/folder"),
        ({"validate__metric": "val_los"}, InputError, "'val_los' is not measured; known metrics: val_loss"),
        ({"train__target": "unigram_entropy"}, InputError, "'unigram_entropy' is not known for model type"),
        ({"train": {"tokens": 50, "learning_rate": 0.1}}, InputError, "counts samples; give train.samples"),
        ({"contract": "training-loop-pretrain-v9"}, InputError, "shipped: .*training-loop-pretrain-v1"),
        ({"train__init": "no-such-run"}, InputError, "no-such-run: is no run directory"),
        ({"device": "cuda:15"}, DeviceUnavailableError, "device 'cuda:15' was asked for"),
    ],
)
def test_an_error_before_the_first_step_leaves_no_run_directory(
    changes: dict[str, Any], kind: type[TrainwrightError], message: str, tmp_path: Path
) -> None:
    if "device" in changes and cuda_devices()[0] > 15:
        pytest.skip("this machine has sixteen CUDA devices")
    with pytest.raises(kind, match=message):
        execute(tmp_path / "runs", **changes)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("runs_dir", ["file", "file/below"])
def test_a_runs_directory_that_cannot_be_made_is_a_store_error(runs_dir: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot be written: .*choose another --runs-dir") as refused:
        short(tmp_path / runs_dir)
    assert refused.value.exit_code == 7
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to root")
def test_a_read_only_runs_directory_is_a_store_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="cannot be made: Permission denied"):
        short(tmp_path)


def test_a_disk_without_room_for_a_checkpoint_is_told_before_a_directory_is_made(tmp_path: Path) -> None:
    code = harness.finish(harness.start(begin_on_a_full_disk, tmp_path))
    if code == full_disk.NO_NAMESPACE:
        pytest.skip("this system lets no process mount a disk of its own")
    assert code == 7
    assert re.fullmatch(
        r"a checkpoint needs about \d{6} bytes and \d{5} are free; make room or choose another --runs-dir",
        (tmp_path / "message").read_text(),
    )
    assert (tmp_path / "left").read_text() == "filler"


def begin_on_a_full_disk(folder: Path) -> int:
    disk = folder / "disk"
    disk.mkdir()
    if not full_disk.mounted(disk):
        return full_disk.NO_NAMESPACE
    full_disk.fill(disk / "filler", 90_000)
    try:
        execute(disk / "runs", model__hidden=512)
    except StoreError as error:
        (folder / "message").write_text(str(error))
        (folder / "left").write_text(" ".join(path.name for path in disk.iterdir()))
        return error.exit_code
    return 0


# -- what is on record -----------------------------------------------------------------------------------------------


def test_values_that_a_mode_set_are_told_from_those_that_were_given(tmp_path: Path) -> None:
    run = short(tmp_path, train__mode="finetune", model__loss_scale=0.1)  # with a learning rate of its own
    record, resolved = read_json(run.environment), RunConfig.load(run.config)
    assert record["explicit"] == {
        "learning_rate": True,
        "warmup_steps": False,
        "target": False,
        "first_validation_cap": False,
    }
    assert (resolved.train.learning_rate, resolved.schedule.warmup_steps) == (1e-2, 100)
    assert (record["target"], record["first_validation_cap"]) == (2.2, 10.0)


def test_the_environment_of_a_run_is_on_record(tmp_path: Path) -> None:
    run = short(tmp_path)
    record = read_json(run.environment)
    assert record["run"] == run.id
    assert (record["seed"], record["threads"], record["device"], record["device_name"]) == (7, 1, "cpu", "cpu")
    assert record["model_type"] == "tests.toys:Toy"
    assert record["architecture"] == {"hidden": 16}
    assert record["parameters"] == 64 * 16 + 16 + 16 + 1
    assert record["config_sha256"] == RunConfig.load(run.config).sha256()
    assert (record["planned_steps"], record["steps_per_epoch"], record["items_per_epoch"]) == (20, 10, 320)
    assert record["packages"]["torch"] == torch.__version__
    assert record["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
    assert record["host"]["cpus"] == os.cpu_count()
    assert len(record["hashes"]["data"]) == 64
    assert record["absent"]["gpu_util_pct"], "the reason of the missing sensor"
    assert {"trainwright", "python", "cuda", "git", "command"} <= record.keys()


@pytest.mark.parametrize("which", ["toy", "lm"])
def test_the_seconds_of_a_run_are_accounted_for(which: str, uncut: RunDirectory, judged: RunResult) -> None:
    seconds = read_json((uncut if which == "toy" else judged.run).result)["seconds"]
    assert seconds.keys() == {"training", "validation", "checkpoint", "elapsed"}
    told = seconds["training"] + seconds["validation"] + seconds["checkpoint"]
    assert 0.95 * seconds["elapsed"] <= told <= seconds["elapsed"]
    assert min(seconds.values()) > 0


FAILS = """
from tests.toys import Toy

class Fails(Toy):
    def forward(self, batch):
        if self.training and self.step == 13:
            raise KeyError("embedding")
        return super().forward(batch)

class Unbuilt(Toy):
    def __init__(self, setup):
        super().__init__(setup)
        self.width = 1 // 0
"""


def test_a_trainable_that_fails_leaves_its_records_and_can_go_on_once_it_is_mended(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(FAILS)
    assert harness.finish(harness.start(train_in, tmp_path, "fails:Fails")) == 1
    run = harness.only_run(tmp_path / "runs")
    assert [row.step for row in run.read_steps()] == list(range(13))
    [finished] = events(run, "finished")
    assert finished["outcome"] == "internal_error"
    assert finished["why"] == f"KeyError: 'embedding' (at {tmp_path / 'fails.py'}:7, in forward)"
    assert finished["traceback"][-1] == "KeyError: 'embedding'\n"
    assert not run.result.exists(), "nothing was decided about the run"
    (tmp_path / "fails.py").write_text(FAILS.replace("== 13", "== -1"))
    assert harness.finish(harness.start(resume_in, tmp_path)) == 0
    assert [row.step for row in run.read_steps()] == list(range(20))


def test_a_trainable_that_cannot_be_built_is_told_by_where_it_failed_and_leaves_no_directory(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(FAILS)
    assert harness.finish(harness.start(train_in, tmp_path, "fails:Unbuilt")) == 1
    what = "ZeroDivisionError: integer division or modulo by zero"
    place = f"{tmp_path / 'fails.py'}:13, in __init__"
    assert (tmp_path / "error").read_text() == f"model type 'fails:Unbuilt' cannot be built: {what} (at {place})"
    assert not (tmp_path / "runs").exists()


def train_in(folder: Path, model_type: str) -> int:
    os.chdir(folder)
    try:
        return execute(folder / "runs", model__type=model_type, train__steps=20).exit_code
    except TrainwrightError as error:
        (folder / "error").write_text(str(error))
        return error.exit_code


def resume_in(folder: Path) -> int:
    os.chdir(folder)
    return harness.resume(folder / "runs")


# -- judging ---------------------------------------------------------------------------------------------------------


def test_a_run_is_judged_by_another_contract_as_well(judged: RunResult, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(
        "id: other\nversion: 1.0.0\ntitle: Other\npurpose: a bound of its own\n"
        "changelog:\n  - {version: 1.0.0, date: 2026-01-01, changes: [first]}\n"
        "metrics:\n  - {name: step, unit: count, since: 1.0.0, meaning: number of the update}\n"
        "gates:\n  - id: GATE-OTHER-001\n    claim: ends by step 50\n    rows: steps\n"
        "    figures: {last: max(step)}\n    holds: last <= 50\n"
        "    fixtures: {good: [{steps: {step: 50}}], bad: [{steps: {step: 51}}]}\n"
    )
    with harness.left_as_it_was(judged.run.path):
        [verdict] = judge_run(judged.run, str(other))
    assert (verdict.gate, verdict.result, verdict.figures) == ("GATE-OTHER-001", "fail", {"last": 59})


def test_a_judgement_from_the_files_gives_the_recorded_verdicts(judged: RunResult) -> None:
    recorded = read_json(judged.run.result)["verdicts"]
    assert judged.outcome is Outcome.DONE
    assert msgspec.to_builtins(judge_run(judged.run)) == recorded
    assert {verdict["result"] for verdict in recorded} == {"pass", "not_applicable", "no_evidence"}


def without_wall_ms(run: RunDirectory) -> RunDirectory:
    """Turn the rows of a run into those of contract 1.4.0."""
    for file in run.path.rglob("steps.jsonl"):
        rows = [json.loads(line) for line in file.read_bytes().splitlines()]
        old = [{name: value for name, value in row.items() if name != "wall_ms"} for row in rows]
        file.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in old))
    return run


def test_rows_of_contract_1_4_0_pass_through_judge_report_and_listing(
    judged: RunResult, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = without_wall_ms(copied(judged.run, tmp_path))
    found = {verdict.gate: verdict.result for verdict in judge_run(run)}
    expected = {verdict.gate: verdict.result for verdict in judged.verdicts}
    wall_ms_unknown = {"GATE-TRAIN-001", "GATE-TRAIN-008", "GATE-TRAIN-THROUGHPUT", "GATE-TRAIN-CONSTANT"}
    assert {gate for gate in found if found[gate] != expected[gate]} == wall_ms_unknown
    assert "pass" not in {found[gate] for gate in wall_ms_unknown}, "what was not measured proves nothing"
    assert "<svg" in write_report(run).read_text()
    listing.print_run(run, json=True)
    assert "wall_ms" not in json.loads(capfd.readouterr().out)["last_row"]
    assert run.read_steps()[5].wall_ms_measured is False


def test_rows_of_contract_1_4_0_pass_through_a_resume(shards: Path, tmp_path: Path) -> None:
    values = harness.language_model(shards, contract=CONTRACT)
    run = without_wall_ms(killed(tmp_path, values))
    result = runs.resume(run)
    assert result.step == 60
    rows = [json.loads(line) for line in run.steps.read_bytes().splitlines()]
    begun = run.attempts()[1].start().step
    assert [row["step"] for row in rows] == list(range(60))
    assert ["wall_ms" in row for row in rows] == [row["step"] >= begun for row in rows]


@pytest.mark.parametrize("loss", [3.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("norm", [0.0, math.nan, math.inf])
def test_the_gate_of_finite_numbers_agrees_with_the_guard(loss: float, norm: float) -> None:
    [gate] = [gate for gate in load_contract(CONTRACT).gates if gate.id == "GATE-TRAIN-007"]
    stopped = guards.not_finite(4, loss, norm) is not None
    columns: Mapping[str, Sequence[float]] = {
        "train_loss": [3.1, loss],
        "grad_norm": [1.0, norm],
        "lr": [0.1, 0.1],
        "tokens_per_sec": [9.0, 9.0],
    }
    tables = fixtures.facts_of_fixture({"steps": dict(columns)})
    with connect() as connection, registered(connection, tables):
        assert judge_gate(connection, gate, tables).result == ("fail" if stopped else "pass")
