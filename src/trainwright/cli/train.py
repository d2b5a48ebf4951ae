"""`train` and `resume`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from trainwright.cli.options import RUNS_DIR, Device, Json, Overrides, Run, RunConfigFile, RunsDir
from trainwright.cli.output import print_json

if TYPE_CHECKING:
    from trainwright.checkpoints.base import Store
    from trainwright.cli.progress import Progress
    from trainwright.rundir import RunDirectory
    from trainwright.runs import RunResult
    from trainwright.telemetry import Telemetry

MetricsPort: TypeAlias = Annotated[
    int | None, typer.Option(help="serve what is counted, for Prometheus, on 127.0.0.1 (0: a free port)")
]


def train(
    file: RunConfigFile,
    overrides: Overrides = None,
    device: Device = None,
    init: Annotated[str | None, typer.Option(help="take the weights of this earlier run")] = None,
    runs_dir: RunsDir = RUNS_DIR,
    metrics_port: MetricsPort = None,
    json: Json = False,
) -> None:
    """Train a run, judge it from its files, print the verdicts. Exit code 0 only when every gate holds."""
    from trainwright.config import RunConfig

    changes = changes_of(overrides, {"device": device, "train.init": init})
    resolved(RunConfig.load(file, changes).device)
    from trainwright import app

    with counted(metrics_port) as telemetry, watching(json=json) as watcher:
        result = app.train(file, changes, runs_dir=runs_dir, watcher=watcher, telemetry=telemetry)
    _finish(result, json=json)


def resume(
    run: Run,
    overrides: Overrides = None,
    device: Device = None,
    runs_dir: RunsDir = RUNS_DIR,
    metrics_port: MetricsPort = None,
    json: Json = False,
) -> None:
    """Go on with a run from its newest valid checkpoint; with KEY=VALUE, in a new run whose parent it is.

    RUN may be the URL of a run in a store, as s3://bucket/prefix/runs/ID: its directory is restored first.
    """
    if device is not None:
        resolved(device)
    found, store = _located(run, runs_dir)
    if device is None:
        resolved(_device_of(found, overrides or []))
    from trainwright import app

    with counted(metrics_port) as telemetry, watching(json=json) as watcher:
        result = app.resume(
            found.path,
            overrides or [],
            device=device,
            runs_dir=runs_dir,
            watcher=watcher,
            store=store,
            telemetry=telemetry,
        )
    _finish(result, json=json)


def _located(run: str, runs_dir: Path) -> "tuple[RunDirectory, Store | None]":
    """Find a run before torch is imported, unless it is to be restored from a store."""
    from trainwright.rundir import RunDirectory

    if "://" not in run:
        return RunDirectory.find(run, runs_dir), None
    from trainwright import app

    return app.located(run, runs_dir)


def _device_of(run: "RunDirectory", overrides: list[str]) -> str:
    from trainwright.config import RunConfig

    return RunConfig.load(run.config, overrides).device


@contextmanager
def counted(metrics_port: int | None) -> "Iterator[Telemetry]":
    """Count what a command does; serve the numbers while it runs, where a port is given."""
    from trainwright.telemetry import ADDRESS, Telemetry

    telemetry = Telemetry()
    if metrics_port is None:
        yield telemetry
        return
    with telemetry.served(metrics_port) as port:
        print(f"metrics: http://{ADDRESS}:{port}/metrics", file=sys.stderr, flush=True)
        yield telemetry


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
