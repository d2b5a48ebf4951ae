"""Runs on a disk that fills up in the middle, really: by a limit of the system on files, or on a small disk of its own.

The disk of its own is a tmpfs in a mount namespace of this process alone; what it holds is copied out for the test.
"""

import ctypes
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.acceptance import harness
from trainwright import runs
from trainwright.config import RunConfig
from trainwright.errors import TrainwrightError
from trainwright.jsonfile import write_json
from trainwright.metrics import Event
from trainwright.recorder import Silent
from trainwright.runs import RunResult

NO_NAMESPACE = 99
NEW_NAMESPACE, NEW_USER, PRIVATE = 0x20000, 0x10000000, 0x40000 | 0x4000
DISK_BYTES = 8 << 20


class AtCheckpoint(Silent):
    """Does something once the checkpoint of `step` is saved."""

    def __init__(self, step: int, act: Callable[[], None]) -> None:
        self._step, self._act = step, act

    def on_event(self, event: Event) -> None:
        if event.kind == "checkpoint_saved" and event.step == self._step:
            self._act()


def train_and_fill(values: dict[str, Any], runs_dir: Path, notes: Path, step: int, act: Callable[[], None]) -> int:
    result = runs.execute(RunConfig.parse(values), runs_dir=runs_dir, watcher=AtCheckpoint(step, act))
    note(notes, result)
    return result.exit_code


def note(path: Path, result: RunResult) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (before[1], before[1]))
    write_json(path, {"outcome": result.outcome.label, "why": result.why, "step": result.step})


def train_with_small_files(values: dict[str, Any], runs_dir: Path, notes: Path, step: int, size: int) -> int:
    """Train; from the checkpoint of `step` on, the system refuses files above `size` bytes."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    return train_and_fill(
        values, runs_dir, notes, step, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    )


def train_on_a_small_disk(values: dict[str, Any], folder: Path, step: int, free: int) -> int:
    """Train until the disk is full but for `free` bytes, make room, resume; `full` and `resumed` are copies of it."""
    disk = folder / "disk"
    disk.mkdir()
    if not mounted(disk):
        return NO_NAMESPACE
    filler = disk / "filler"
    code = train_and_fill(values, disk / "runs", folder / "full.json", step, lambda: fill(filler, free))
    shutil.copytree(disk / "runs", folder / "full")
    filler.unlink()
    resumed = harness.resume(disk / "runs")
    shutil.copytree(disk / "runs", folder / "resumed")
    write_json(folder / "codes.json", {"full": code, "resumed": resumed})
    return 0


def mounted(disk: Path) -> bool:
    """Mount a small disk that only this process sees; False where the system does not let it."""
    library = ctypes.CDLL(None, use_errno=True)
    kinds = NEW_NAMESPACE if os.geteuid() == 0 else NEW_NAMESPACE | NEW_USER
    return not (
        library.unshare(kinds)
        or library.mount(None, b"/", None, PRIVATE, None)
        or library.mount(b"tmpfs", os.fsencode(disk), b"tmpfs", 0, f"size={DISK_BYTES}".encode())
    )


def fill(filler: Path, free: int) -> None:
    usable = shutil.disk_usage(filler.parent).free
    filler.write_bytes(bytes(max(0, usable - free)))


def refused_with_small_files(values: dict[str, Any], runs_dir: Path, size: int) -> int:
    """Begin a run although the system refuses files above `size` bytes; give the exit code of the error."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        return runs.execute(RunConfig.parse(values), runs_dir=runs_dir).exit_code
    except TrainwrightError as error:
        return error.exit_code
