"""`trainwright doctor`: tries every backend that is configured, and says what is wrong and what to do."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import typer

from trainwright.cli.options import RUNS_DIR, Json, RunsDir
from trainwright.cli.output import console, grid, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from trainwright.diagnosis import Check

STYLES: Final = {"ok": "green", "failed": "bold red"}


def doctor(runs_dir: RunsDir = RUNS_DIR, json: Json = False) -> None:
    """Try settings, secrets, store, registry, vault, clocks, free space and keys. Exit code 7 when something failed."""
    from trainwright.diagnosis import diagnose
    from trainwright.settings import Settings

    checks = list(diagnose(Settings.load(), runs_dir))
    failed = sum(check.result == "failed" for check in checks)
    if json:
        print_json({"failed": failed, "checks": checks})
    else:
        console().print(_table(checks))
        print(f"{failed} of {len(checks)} checks failed" if failed else "nothing failed")
    raise typer.Exit(7 if failed else 0)


def _table(checks: "Sequence[Check]") -> "Table":
    from rich.text import Text

    table = grid("check!", "result!", "measured", "what to do")
    for check in checks:
        style = STYLES.get(check.result, "dim")
        table.add_row(check.name, Text(check.result, style=style), Text(check.measured), Text(check.advice))
    return table
