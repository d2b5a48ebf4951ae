"""Commands that read: `gates`, `report`, `config`, `runs ls`, `runs show`, `version`."""

from typing import Annotated

import typer

from trainwright.cli.options import RUNS_DIR, Json, Overrides, Run, RunConfigFile, RunsDir
from trainwright.cli.output import console, print_json, tell_torn
from trainwright.errors import InputError

runs_app = typer.Typer(help="List and show runs.", no_args_is_help=True)


def gates(
    run: Run,
    contract: Annotated[str | None, typer.Option(help="judge by this contract (shipped name or file) instead")] = None,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Judge a run again, from its files alone. Exit code 0 when every gate holds, else 3."""
    from trainwright.cli import verdicts
    from trainwright.contract.judge import decides_exit
    from trainwright.contract.run import judge_run
    from trainwright.rundir import RunDirectory

    found = RunDirectory.find(run, runs_dir)
    tell_torn(found)
    judged = judge_run(found, contract)
    if not judged:
        raise InputError(f"{found.id}: was trained under no contract; name one to judge it by, with --contract")
    if json:
        print_json(judged)
    else:
        console().print(verdicts.table(judged))
    raise typer.Exit(3 if any(map(decides_exit, judged)) else 0)


def report(run: Run, runs_dir: RunsDir = RUNS_DIR) -> None:
    """Write report.html of a run again."""
    from trainwright.report import write_report
    from trainwright.rundir import RunDirectory

    found = RunDirectory.find(run, runs_dir)
    tell_torn(found)
    print(write_report(found))


def config(file: RunConfigFile, overrides: Overrides = None, json: Json = False) -> None:
    """Print a configuration as resolved: every value, and what `train.mode` set."""
    from trainwright.config import RunConfig
    from trainwright.models.build import check

    given = RunConfig.load(file, overrides or [])
    check(given)
    resolved = given.resolved()
    if json:
        print_json(resolved.to_dict())
        return
    print(resolved.to_yaml(), end="")
    if given.train.mode:
        for name, explicit in given.explicit().items():
            print(f"# {name}: {'given' if explicit else f'set by train.mode {given.train.mode}'}")


@runs_app.command("ls")
def runs_ls(runs_dir: RunsDir = RUNS_DIR, json: Json = False) -> None:
    """List runs, newest first."""
    from trainwright.cli import listing

    listing.print_runs(runs_dir, json=json)


@runs_app.command("show")
def runs_show(run: Run, runs_dir: RunsDir = RUNS_DIR, json: Json = False) -> None:
    """Show one run: how it ended, its last rows, its checkpoints, its verdicts."""
    from trainwright.cli import listing
    from trainwright.rundir import RunDirectory

    found = RunDirectory.find(run, runs_dir)
    tell_torn(found)
    listing.print_run(found, json=json)


def version(json: Json = False) -> None:
    """Print the version; with --json, also torch, CUDA build and the devices that can be seen."""
    from trainwright import __version__

    if not json:
        print(f"trainwright {__version__}")
        return
    import platform

    import torch

    from trainwright.device import cuda_devices

    count, source = cuda_devices()
    document = {
        "trainwright": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda_build": torch.version.cuda,
        "cuda_available": torch.cuda.is_available(),
        "cuda_devices": count,
        "cuda_devices_source": source,
    }
    print_json(document)
