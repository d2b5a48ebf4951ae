"""What runs in the children of the tests of stores: trainings that are killed at a moment of an upload."""

import os
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.acceptance.harness import DEADLINE_SECONDS, only_run, until
from tests.stores import WRITES, Watched
from trainwright import app, runs
from trainwright.checkpoints.base import Store
from trainwright.checkpoints.filesystem import FileStore
from trainwright.config import RunConfig
from trainwright.metrics import StepMetrics
from trainwright.recorder import Silent

LATE_ROW = 110  # of the harness's 120 rows


def files_in(folder: Path) -> Store:
    return FileStore(folder)


def train_killed_at_write(
    number: int, values: Mapping[str, Any], runs_dir: Path, opened: Callable[..., Store], *arguments: Any
) -> int:
    """Train with a copy in a store, and end by SIGKILL at the n-th write to it (from 0), before the run's end."""
    store = killing(opened(*arguments), number)
    config = RunConfig.parse(values)
    return runs.execute(config, runs_dir=runs_dir, store=store, watcher=HeldBeforeTheEnd()).exit_code


def resume_with(runs_dir: Path, opened: Callable[..., Store], *arguments: Any) -> int:
    return runs.resume(only_run(runs_dir), store=opened(*arguments)).exit_code


def killing(inner: Store, number: int) -> Watched:
    store = Watched(inner)

    def kill(verb: str, _key: str) -> None:
        if verb in WRITES and sum(seen in WRITES for seen, _ in store.calls) > number + 2:  # after the probe's two
            os.kill(os.getpid(), signal.SIGKILL)

    store.before = kill
    return store


class HeldBeforeTheEnd(Silent):
    """Waits after a late row for the kill, so that a slow upload is not overtaken by the end of the run."""

    def on_step(self, row: StepMetrics) -> None:
        if row.step == LATE_ROW:
            threading.Event().wait(DEADLINE_SECONDS)


class KilledOnceUploaded(Silent):
    """Kills its own process after a row, once a checkpoint of at least `step` updates is whole in the store."""

    def __init__(self, folder: Path, step: int) -> None:
        self._folder, self._step = folder, step

    def on_step(self, row: StepMetrics) -> None:
        if row.step == LATE_ROW:
            until(self._is_uploaded)
        if self._is_uploaded():
            os.kill(os.getpid(), signal.SIGKILL)

    def _is_uploaded(self) -> bool:
        manifests = self._folder.glob("runs/*/checkpoints/step-*/manifest.json")
        return any(int(path.parent.name.partition("-")[2].partition(".")[0]) >= self._step for path in manifests)


def train_killed_once_uploaded(step: int, values: Mapping[str, Any], runs_dir: Path, store: Path) -> int:
    return app.train(values, runs_dir=runs_dir, watcher=KilledOnceUploaded(store, step)).exit_code
