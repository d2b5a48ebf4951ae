"""A process is killed at random moments while it saves checkpoints; the newest and the best are whole every time."""

import os
import random
import secrets
import signal
import tempfile
from collections.abc import Iterator
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.acceptance import harness, saver
from trainwright.checkpoints.checkpoints import Checkpoints
from trainwright.checkpoints.filesystem import FileStore
from trainwright.manifest import Checkpoint
from trainwright.state import Segment, StateValue

PLACES = ["disk", "memory"]
KILLS = 50
FEWER = 16  # in `make test`
LONGEST_WAIT_SECONDS = 0.08
MEMORY_DISK = Path("/dev/shm")


def is_content_of(found: dict[str, StateValue], step: int) -> bool:
    wanted = saver.content(step)
    return found.keys() == {*wanted, "best"} and all(same(found[name], value) for name, value in wanted.items())


def same(found: StateValue, wanted: StateValue) -> bool:
    if isinstance(wanted, torch.Tensor):
        return isinstance(found, torch.Tensor) and torch.equal(found, wanted)
    if isinstance(wanted, Segment):
        return isinstance(found, Segment) and np.array_equal(found.array, wanted.array)
    return found == wanted


def unfinished(folder: Path, attempt: int | str = "*") -> list[str]:
    """Give the saves that are, or were when a kill came, between their first file and their manifest."""
    return [path.name for path in folder.glob(f"step-*.a{attempt}") if not (path / "manifest.json").exists()]


def temporaries(folder: Path) -> list[Path]:
    return list(folder.rglob("*.tmp"))


def files_of(folder: Path, checkpoint: Checkpoint) -> set[str]:
    return {path.name for path in (folder / checkpoint.name).iterdir()}


def assert_swept(folder: Path) -> None:
    """Hold that a sweep leaves whole checkpoints, records of retired ones, the segments in use, and nothing else."""
    checkpoints = Checkpoints(FileStore(folder))
    assert temporaries(folder) == []
    assert unfinished(folder) == []
    used = set()
    for checkpoint in checkpoints.committed():
        manifest = checkpoints.manifest(checkpoint)
        if checkpoints.retired(checkpoint):
            assert files_of(folder, checkpoint) == {"manifest.json", "retired.json"}
        else:
            assert files_of(folder, checkpoint) == {*manifest.files, "manifest.json"}
            used |= {record.sha256 for record in manifest.segments.values()}
    assert {path.name for path in folder.glob("segments/*")} == used


def start(folder: Path, attempt: int, step: int, best: str | None) -> BaseProcess:
    """Start a saver, and come back once it saves."""
    process = harness.start(saver.save_forever, folder, attempt, step, best)
    harness.until(lambda: any(folder.glob(f"step-*.a{attempt}")), process)
    return process


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Give a folder on disk, where a save spends its time in syncs, or one in memory, where they cost nothing."""
    if request.param == "disk" or not os.access(MEMORY_DISK, os.W_OK):
        yield tmp_path / "checkpoints"
        return
    with tempfile.TemporaryDirectory(dir=MEMORY_DISK) as name:
        yield Path(name) / "checkpoints"


@pytest.mark.parametrize("kills", [FEWER, pytest.param(KILLS, marks=pytest.mark.long)])
def test_the_newest_and_the_best_load_after_a_kill_at_any_moment_of_saving(kills: int, place: Path) -> None:
    seed = int(os.environ.get("TRAINWRIGHT_TEST_SEED") or secrets.randbelow(2**32))
    print(f"TRAINWRIGHT_TEST_SEED={seed}")
    moments = random.Random(seed)
    step, best, in_a_save, in_a_file = 0, None, 0, 0
    for attempt in range(1, kills // len(PLACES) + 1):
        process = start(place, attempt, step, best)
        process.join(moments.uniform(0, LONGEST_WAIT_SECONDS))  # it never ends by itself: this is the random moment
        if attempt % 2:  # or, from there on, some moment of a save
            harness.until(partial(unfinished, place, attempt), process)
        assert harness.kill(process) == -signal.SIGKILL
        in_a_save += bool(unfinished(place))
        in_a_file += bool(temporaries(place))

        newest, best = assert_whole(place, step)
        step = newest.step if newest else 0
        checkpoints = Checkpoints(FileStore(place))
        checkpoints.sweep()
        assert_swept(place)
        for checkpoint in filter(None, [newest, Checkpoint.named(best or "")]):
            assert is_content_of(checkpoints.load(checkpoint)[1], checkpoint.step)
    print(f"{attempt} kills: {in_a_save} between first file and manifest, {in_a_file} inside a file; up to step {step}")
    assert in_a_save > 0
    assert best is not None


def assert_whole(folder: Path, least: int) -> tuple[Checkpoint | None, str | None]:
    """Hold that the newest committed checkpoint loads as the state of its step; give it and the best one."""
    checkpoints = Checkpoints(FileStore(folder))
    committed = checkpoints.committed()
    found = checkpoints.newest_valid({})
    assert all("manifest.json: is missing: the save was interrupted" in reason for _, reason in found.rejected)
    if found.loaded is None:
        assert committed == []
        return None, None
    newest, _, state = found.loaded
    assert newest == max(committed)
    assert newest.step >= least
    assert is_content_of(state, newest.step)
    best = state["best"]
    return newest, best if isinstance(best, str) else None
