"""`train` and `resume`."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from trainwright.cli.options import RUNS_DIR, Device, Json, Overrides, Run, RunConfigFile, RunsDir
from trainwright.cli.output import print_json

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

    changes = changes_of(overrides, {"device": device, "train.init": init})
    resolved(RunConfig.load(file, changes).device)
    from trainwright import app

    with watching(json=json) as watcher:
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
    resolved(device if device is not None else RunConfig.load(found.config, overrides or []).device)
    from trainwright import app

    with watching(json=json) as watcher:
        result = app.resume(found.path, overrides or [], device=device, runs_dir=runs_dir, watcher=watcher)
    _finish(result, json=json)


def changes_of(overrides: list[str] | None, options: dict[str, str | None]) -> list[str]:
    """Give the arguments and the options that were given as `key=value`, options last: they win."""
    return [*(overrides or []), *(f"{key}={value!r}" for key, value in options.items() if value is not None)]


def resolved(spec: str) -> str:
    """Decide on the device before torch is imported: an explicit request that fails does so at once. Give its name."""
    from trainwright import device

    found = device.resolve(spec)
    if found.notice:
        print(found.notice, file=sys.stderr)
    return found.name


def watching(*, json: bool) -> "Progress":
    from trainwright.cli.progress import Progress

    return Progress(quiet=json)


def _finish(result: "RunResult", *, json: bool) -> None:
    from trainwright.cli import verdicts

    if json:
        print_json(verdicts.document(result))
    else:
        verdicts.print_table(result)
    raise typer.Exit(result.exit_code)
