"""What the command line, a script and a notebook call: train or go on with a run, and write its report."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainwright import origins, runs
from trainwright.config import RunConfig
from trainwright.errors import InputError, StoreError
from trainwright.recorder import Watcher
from trainwright.report import write_report
from trainwright.rundir import RunDirectory
from trainwright.runs import RunResult


def train(
    run: str | Path | Mapping[str, Any] | RunConfig,
    overrides: Sequence[str] = (),
    *,
    runs_dir: str | Path = "runs",
    watcher: Watcher | None = None,
) -> RunResult:
    """Train a new run of a run.yaml's path, a mapping of its keys, or a RunConfig; judge it from its files.

    `overrides` are `key=value` texts that win over the file's. Outcomes that are expected (a gate that does not hold,
    an abort by a guard, a signal) are in the result. Errors: TrainwrightError, before a run directory is made.
    """
    if isinstance(run, RunConfig):
        config = RunConfig.from_document(run.document_with(overrides))
    elif isinstance(run, Mapping):
        config = RunConfig.parse(run, overrides)
    else:
        config = RunConfig.load(Path(run), overrides)
    return _reported(runs.execute(config, runs_dir=Path(runs_dir), watcher=watcher))


def resume(
    run: str | Path,
    overrides: Sequence[str] = (),
    *,
    device: str | None = None,
    runs_dir: str | Path = "runs",
    watcher: Watcher | None = None,
) -> RunResult:
    """Go on with a run, by id or path, from its newest valid checkpoint.

    With `overrides` (a larger budget, say) it goes on in a new run, whose parent the old one is.
    Errors: TrainwrightError; InputError for a run that has ended when nothing is changed.
    """
    found = RunDirectory.find(str(run), Path(runs_dir))
    if not overrides:
        return _reported(runs.resume(found, device=device, watcher=watcher))
    if any(text.startswith("train.init=") for text in overrides):
        raise InputError("train.init: a run that goes on from another has its weights; start a new run to take others")
    changes = [*overrides, *([f"device={device}"] if device else [])]
    config = origins.child_config(found, changes)
    return _reported(runs.execute(config, runs_dir=Path(runs_dir), watcher=watcher, parent=found))


def _reported(result: RunResult) -> RunResult:
    """Write the report; where it cannot be written, say so, for the run's end is not changed by it."""
    try:
        write_report(result.run)
    except StoreError as error:
        print(error, file=sys.stderr)  # noqa: T201  there is no other place to tell it
    return result
