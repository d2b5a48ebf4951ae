"""Commands that read: `gates`, `report`, `config`, `runs ls`, `runs show`, `version`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainwright.cli.options import RUNS_DIR, Json, Overrides, Run, RunConfigFile, RunsDir
from trainwright.cli.output import console, print_json, tell_torn
from trainwright.errors import InputError

if TYPE_CHECKING:
    from trainwright.contract.judge import Verdict

runs_app = typer.Typer(help="List and show runs.", no_args_is_help=True)


def gates(
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="run id, path of a run directory, or latest")] = None,
    contract: Annotated[str | None, typer.Option(help="judge by this contract (shipped name or file) instead")] = None,
    steps: Annotated[
        str | None, typer.Option(metavar="FILE", help="a log in place of RUN: .jsonl, trainer_state.json, metrics.csv")
    ] = None,
    mapping: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="OURS=THEIRS", help="what the log calls a column, train_loss=loss"),
    ] = None,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Judge a run again from its files alone, or a log of any tool. Exit code 0 when every gate holds, else 3."""
    from trainwright.cli import verdicts

    if run is not None and steps is None and not mapping:
        judged, fails = _judged_run(run, contract, runs_dir)
    elif run is None and steps is not None:
        judged, fails = _judged_log(steps, contract, mapping or [])
    else:
        raise InputError("expected either RUN, or --steps FILE with as many --map as its columns need")
    if json:
        print_json(judged)
    else:
        console().print(verdicts.table(judged))
        if steps is not None:
            decided = sum(verdict.result != "no_evidence" for verdict in judged)
            print(f"{decided} of {len(judged)} gates could be decided from this log")
    raise typer.Exit(3 if fails else 0)


def _judged_run(run: str, contract: str | None, runs_dir: Path) -> "tuple[Sequence[Verdict], bool]":
    """Give the verdicts of a run or a record of checks, and whether one keeps it from its good end."""
    from trainwright.contract.run import failing
    from trainwright.outside import verdicts_of_run
    from trainwright.rundir import RunDirectory

    found = RunDirectory.find(run, runs_dir, records=run != "latest")
    tell_torn(found)
    judged = verdicts_of_run(found, contract)
    if not judged:
        raise InputError(f"{found.id}: was trained under no contract; name one to judge it by, with --contract")
    return judged, bool(failing(found, judged))


def _judged_log(steps: str, contract: str | None, mapping: list[str]) -> "tuple[Sequence[Verdict], bool]":
    from trainwright.contract.judge import decides_exit
    from trainwright.outside import verdicts_of_log

    if contract is None:
        raise InputError(f"{steps}: a log names no contract; name one to judge it by, with --contract")
    judged = verdicts_of_log(steps, contract, mapping)
    return judged, any(map(decides_exit, judged))


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

    from trainwright.device import installed

    machine, build = installed().document(), torch.version.cuda
    no_build = None if build else f"torch {torch.__version__} is a build without CUDA"
    print_json(
        {
            "trainwright": __version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "cuda_build": build,
            "cuda_available": torch.cuda.is_available(),
            **machine,
            "absent": {"cuda_build": no_build, **machine["absent"]},
        }
    )
