"""`train` and `resume`."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from trainwright.cli.options import RUNS_DIR, Device, Json, Overrides, Run, RunConfigFile, RunsDir
from trainwright.cli.output import console, print_json

if TYPE_CHECKING:
    from trainwright.cli.progress import Progress
    from trainwright.runs import RunResult


def train(
    file: RunConfigFile,
    overrides: Overrides = None,
    device: Device = None,
    init: Annotated[str | None, typer.Option(help="take the weights of this earlier run")] = None,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Train a run, judge it from its files, print the verdicts. Exit code 0 only when every gate holds."""
    from trainwright.config import RunConfig

    changes = _changes(overrides, {"device": device, "train.init": init})
    _resolve(RunConfig.load(file, changes).device)
    from trainwright import app

    with _watching(json=json) as watcher:
        result = app.train(file, changes, runs_dir=runs_dir, watcher=watcher)
    _finish(result, json=json)


def resume(
    run: Run,
    overrides: Overrides = None,
    device: Device = None,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Go on with a run from its newest valid checkpoint; with KEY=VALUE, in a new run whose parent it is."""
    from trainwright.config import RunConfig
    from trainwright.rundir import RunDirectory

    found = RunDirectory.find(run, runs_dir)
    _resolve(device if device is not None else RunConfig.load(found.config, overrides or []).device)
    from trainwright import app

    with _watching(json=json) as watcher:
        result = app.resume(found.path, overrides or [], device=device, runs_dir=runs_dir, watcher=watcher)
    _finish(result, json=json)


def determinism(
    file: RunConfigFile,
    overrides: Overrides = None,
    device: Device = None,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Make three runs of 100 steps, two of one seed and one of another, and judge the gates over pairs of runs."""
    from trainwright.config import RunConfig

    config = RunConfig.load(file, _changes(overrides, {"device": device}))
    _resolve(config.device)
    from trainwright import pairs
    from trainwright.cli import verdicts

    with _watching(json=json) as watcher:
        found = pairs.determinism(config, runs_dir=runs_dir, watcher=watcher)
    if json:
        print_json({"directories": [str(run.path) for run in found.runs], "verdicts": found.verdicts})
    else:
        console().print(verdicts.table(found.verdicts))
    raise typer.Exit(0 if all(verdict.holds for verdict in found.verdicts) else 3)


def _changes(overrides: list[str] | None, options: dict[str, str | None]) -> list[str]:
    """Give the arguments and the options that were given as `key=value`, options last: they win."""
    return [*(overrides or []), *(f"{key}={value!r}" for key, value in options.items() if value is not None)]


def _resolve(spec: str) -> None:
    """Decide on the device before torch is imported: an explicit request that fails does so at once."""
    from trainwright import device

    notice = device.resolve(spec).notice
    if notice:
        print(notice, file=sys.stderr)


def _watching(*, json: bool) -> "Progress":
    from trainwright.cli.progress import Progress

    return Progress(quiet=json)


def _finish(result: "RunResult", *, json: bool) -> None:
    from trainwright.cli import verdicts

    if json:
        print_json(verdicts.document(result))
    else:
        verdicts.print_table(result)
    raise typer.Exit(result.exit_code)
