"""Commands about the seal of a run: `evidence verify`."""

from pathlib import Path
from typing import Annotated

import typer

from trainwright.cli.options import RUNS_DIR, Json, RunsDir
from trainwright.cli.output import print_json

app = typer.Typer(help="Check what a run has sealed.", no_args_is_help=True)


@app.callback()
def evidence() -> None:
    """Check what a run has sealed."""


@app.command()
def verify(
    run: Annotated[str, typer.Argument(metavar="RUN|FILE", help="run id, run directory, its evidence.json, or latest")],
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Check every hash of a sealed run and judge it again. Exit code 0 when its evidence holds, else 3."""
    from trainwright.evidence import verify as problems_of

    problems = problems_of(_place(run, runs_dir))
    if json:
        print_json({"holds": not problems, "problems": problems})
    else:
        ending = "problem" if len(problems) == 1 else "problems"
        print(*problems, f"{len(problems)} {ending}" if problems else "holds", sep="\n")
    raise typer.Exit(3 if problems else 0)


def _place(run: str, runs_dir: Path) -> Path:
    """Find what is to be checked; a sealed run is one even where its run.yaml is gone."""
    from trainwright.rundir import RunDirectory

    for path in (Path(run), runs_dir / run):
        if path.is_file() or RunDirectory(path).evidence.is_file():
            return path
    return RunDirectory.find(run, runs_dir).path
