"""`trainwright contract status`: where each gate of contracts stands, as tables and a tally."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainwright.cli.options import Json
from trainwright.cli.output import console, grid, line, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from trainwright.statuses import GateStatus

STYLES = {
    "proposed": "red",
    "partial_algorithm_level": "yellow",
    "active_with_live_evidence": "green",
    "stale": "bold red",
}


def status(
    places: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DIR|FILE]...", help="contract files, or folders of them; default: those shipped"),
    ] = None,
    json: Json = False,
) -> None:
    """Compute the status of every gate from its fixtures and its evidence, and say what blocks the next status."""
    from trainwright.outside import statuses_in
    from trainwright.statuses import contract_files, tally

    found = {str(file): statuses_in(file) for file in contract_files(places or [])}
    counted = tally([one for statuses in found.values() for one in statuses])
    if json:
        contracts = [{"file": file, "gates": [one.document() for one in statuses]} for file, statuses in found.items()]
        print_json({"contracts": contracts, "tally": counted.by_status, "live_percent": counted.live_percent})
    else:
        _print(found)
        told = ", ".join(f"{number} {name}" for name, number in counted.by_status.items())
        print(f"{counted.gates} gates: {told}; {counted.live_percent:.0f} % with live evidence")


def _print(found: "Mapping[str, Sequence[GateStatus]]") -> None:
    out = console()
    for file, statuses in found.items():
        line(out, file, style="bold")
        out.print(_table(statuses))
        for text, gates in _blocks(statuses).items():
            line(out, f"blocks: {text} ({', '.join(gates)})")
        out.print()


def _table(statuses: "Sequence[GateStatus]") -> "Table":
    from rich.markup import escape

    table = grid("gate!", "claim", "status!", "last evidence", "date!", "figure")
    for one in statuses:
        entry = one.evidence
        evidence = (entry.run, str(entry.date)) if entry else ("", "")
        state = f"[{STYLES[one.status]}]{one.status}[/]"
        table.add_row(one.gate, escape(one.claim), state, *evidence, escape(one.figure))
    return table


def _blocks(statuses: "Sequence[GateStatus]") -> dict[str, list[str]]:
    """Give each text that says what is missing, with the gates that it is said of."""
    said: dict[str, Any] = {}
    for one in statuses:
        for text in one.blocks:
            said.setdefault(text, []).append(one.gate)
    return said
