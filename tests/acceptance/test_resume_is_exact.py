"""A run that was cut and resumed equals one that was not: rows, validations, weights, optimizer, random streams."""

import random
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance import harness
from trainwright.rundir import RunDirectory

KILLS = 20
AT_ONCE = 7  # of them in `make test`


def moments(first: int, count: int, at_once: int) -> list[Any]:
    """Give seeds of moments, those after the first few marked `long`."""
    return [
        seed if seed < first + at_once else pytest.param(seed, marks=pytest.mark.long)
        for seed in range(first, first + count)
    ]


@pytest.fixture(scope="module")
def uncut(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    runs_dir = tmp_path_factory.mktemp("uncut")
    assert harness.finish(harness.start(harness.train, harness.config(), runs_dir)) == 0
    return harness.only_run(runs_dir)


def resumed_to_the_end(runs_dir: Path) -> RunDirectory:
    assert harness.finish(harness.start(harness.resume, runs_dir)) == 0
    return harness.only_run(runs_dir)


def a_moment(seed: int) -> tuple[str, int]:
    """Draw a moment of the toy's run of 120 steps: after a row, inside the save of a validation, after an event."""
    chance = random.Random(seed)
    what = chance.choice(["step", "step", "step", "validation", "validation", "checkpoint_saved", "checkpoint_removed"])
    return what, chance.randrange(
        {"step": 120, "validation": 7, "checkpoint_saved": 20, "checkpoint_removed": 15}[what]
    )


@pytest.mark.parametrize("seed", moments(0, KILLS, AT_ONCE))
def test_a_run_killed_at_a_random_moment_and_resumed_equals_the_uncut_one(
    seed: int, uncut: RunDirectory, tmp_path: Path
) -> None:
    child = harness.start(harness.train_killed_at, *a_moment(seed), harness.config(), tmp_path)
    assert harness.finish(child) == -signal.SIGKILL
    harness.assert_equal_to(uncut, resumed_to_the_end(tmp_path))


@pytest.mark.parametrize("seed", moments(100, 6, 2))
def test_a_run_that_saves_beside_training_and_is_killed_equals_one_that_saves_at_once(
    seed: int, uncut: RunDirectory, tmp_path: Path
) -> None:
    beside = harness.config(checkpoint__write="background")
    child = harness.start(harness.train_killed_at, *a_moment(seed), beside, tmp_path)
    assert harness.finish(child) == -signal.SIGKILL
    harness.assert_equal_to(uncut, resumed_to_the_end(tmp_path))


def test_a_run_killed_inside_its_first_save_begins_anew_and_equals_the_uncut_one(
    uncut: RunDirectory, tmp_path: Path
) -> None:
    child = harness.start(harness.train_killed_at, "validation", 0, harness.config(), tmp_path)
    assert harness.finish(child) == -signal.SIGKILL
    harness.assert_equal_to(uncut, resumed_to_the_end(tmp_path))


def test_a_run_stopped_at_a_validation_and_killed_inside_its_save_validates_once(
    uncut: RunDirectory, tmp_path: Path
) -> None:
    """The save of the stop holds no validation, so the next attempt validates at that very step and is killed there."""
    child = harness.start(harness.train_stopped_after, 19, harness.config(), tmp_path)
    assert harness.finish(child) == 143
    assert harness.finish(harness.start(harness.resume_killed_at, "validation", 0, tmp_path)) == -signal.SIGKILL
    harness.assert_equal_to(uncut, resumed_to_the_end(tmp_path))


def test_a_run_killed_again_and_again_equals_the_uncut_one(uncut: RunDirectory, tmp_path: Path) -> None:
    child = harness.start(harness.train, harness.config(), tmp_path)
    for rows in (12, 16, 40, 90):
        harness.until_rows(tmp_path, rows, child)
        assert harness.kill(child) == -signal.SIGKILL
        child = harness.start(harness.resume, tmp_path)
    assert harness.finish(child) == 0
    run = harness.only_run(tmp_path)
    assert len(run.attempts()) == 5
    harness.assert_equal_to(uncut, run)


@pytest.mark.parametrize("step", [0, 8, 9, 10, 18, 19, 118], ids="stopped after step {}".format)
def test_a_run_stopped_by_sigterm_around_the_ends_of_epochs_equals_the_uncut_one(
    step: int, uncut: RunDirectory, tmp_path: Path
) -> None:
    """An epoch of the toy is 10 steps."""
    assert harness.finish(harness.start(harness.train_stopped_after, step, harness.config(), tmp_path)) == 143
    harness.assert_equal_to(uncut, resumed_to_the_end(tmp_path))


def test_a_run_killed_before_its_first_checkpoint_starts_again_and_equals_the_uncut_one(
    uncut: RunDirectory, tmp_path: Path
) -> None:
    child = harness.start(harness.train, harness.config(validate__at_start=False), tmp_path)
    harness.until_rows(tmp_path, 2, child)
    harness.kill(child)
    run = resumed_to_the_end(tmp_path)
    assert harness.timeless_rows(run) == harness.timeless_rows(uncut)
    assert harness.last_tensors(run) == harness.last_tensors(uncut)


def test_accumulation_and_halves_of_windows_survive_a_kill(tmp_path: Path) -> None:
    """An epoch of 10 micro-batches, accumulated by 4, is the windows 4, 4, 2."""
    values = harness.config(train__accumulate=4, train__steps=30, validate__every="2 epochs")
    runs = []
    for name, kill in (("uncut", False), ("cut", True)):
        folder = tmp_path / name
        child = harness.start(harness.train, values, folder)
        if kill:
            harness.until_rows(folder, 8, child)
            assert harness.kill(child) == -signal.SIGKILL
            child = harness.start(harness.resume, folder)
        assert harness.finish(child) == 0
        runs.append(harness.only_run(folder))
    harness.assert_equal_to(*runs)
    assert [row.extra["samples"] for row in runs[0].read_steps()][:6] == [128, 128, 64] * 2


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_language_model_killed_in_its_run_equals_the_uncut_one(compiled: bool, tmp_path: Path) -> None:
    shards = harness.token_shards(tmp_path / "shards")
    values = harness.language_model(shards, train__compile=compiled, train__threads=2)
    harness.assert_exact_when_killed(values, tmp_path, ("step", 32), ("validation", 0))
