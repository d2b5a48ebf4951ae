"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

RunConfigFile: TypeAlias = Annotated[Path, typer.Argument(metavar="FILE", help="run.yaml of the run")]
Run: TypeAlias = Annotated[str, typer.Argument(metavar="RUN", help="run id, path of a run directory, or latest")]
Overrides: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="values that win over the file's, as train.steps=50"),
]
RunsDir: TypeAlias = Annotated[Path, typer.Option(help="where run directories live", envvar="TRAINWRIGHT_RUNS_DIR")]
Device: TypeAlias = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:0 … cuda:15 or auto; wins over the file")]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="one JSON document on stdout and nothing else")]
RUNS_DIR = Path("runs")
