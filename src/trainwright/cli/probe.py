"""`trainwright probe`: the machine at hand, asked by the installed command itself."""

from typing import Annotated

import typer

from trainwright.cli.options import RUNS_DIR, Json, RunsDir
from trainwright.cli.output import console, print_json


def probe(
    contract: Annotated[
        str, typer.Option(help="contract (shipped name or file) with gates of kind probe")
    ] = "gpu-training-backend-v1",
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Probe this machine and judge the gates over probes, in a sealed record. Exit code 0 when all hold, else 3."""
    from trainwright import probes
    from trainwright.cli import verdicts

    probed = probes.probe(contract, runs_dir=runs_dir)
    if json:
        print_json({"directory": str(probed.record.path), "verdicts": probed.verdicts})
    else:
        out = console()
        out.print(verdicts.table(probed.verdicts))
        out.print(f"record {probed.record.path}", markup=False, soft_wrap=True)
    raise typer.Exit(0 if probed.holds else 3)
