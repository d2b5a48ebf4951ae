"""Verdicts as a table for people, and a run's result as a document for programs."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.text import Text

from trainwright.cli.output import console, grid, line
from trainwright.contract.judge import DECIDED_BY, UNDECIDED, Verdict, figures_told, headroom_told

if TYPE_CHECKING:
    from trainwright.runs import RunResult

STYLES: Final = {"pass": "green", "fail": "bold red", "no_evidence": "yellow", "not_applicable": "dim"}
SHORT: Final = 30  # characters of the figures of a gate that passes


def table(verdicts: Sequence[Verdict]) -> Group:
    """Give one line for each gate that passes, and of any other that was decided the whole claim and reason.

    Below it stand the gates that are not decided here, with the commands that decide them.
    """
    shown = grid("gate!", "result!", "claim", "why")
    for verdict in verdicts:
        if verdict.is_decided:
            shown.add_row(verdict.gate, *_cells(verdict))
    return Group(*([shown] if shown.rows else []), *map(Text, _undecided(verdicts)))


def _cells(verdict: Verdict) -> tuple[Text, Text, Text]:
    """Give result, claim and why; what a gate that passes says is cut to the width of its column."""
    result = Text(verdict.result.replace("_", " "), style=STYLES[verdict.result])
    if verdict.result == "pass":
        return result, _cut(verdict.claim), _cut(_short(verdict))
    return result, _cut(verdict.claim) if verdict.holds else Text(verdict.claim), Text(verdict.reason)


def _cut(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")


def _short(verdict: Verdict) -> str:
    """Give the figures, of many the first ones, and the headroom."""
    whole = figures_told(verdict.figures, verdict.unit)
    shown = whole if len(whole) <= SHORT else whole[:SHORT].rpartition(", ")[0] or whole.partition(", ")[0]
    figures = shown if shown == whole else f"{shown}, …"
    return "; ".join(part for part in (figures, headroom_told(verdict.headroom_percent)) if part)


def _undecided(verdicts: Sequence[Verdict]) -> Iterator[str]:
    for kind, command in DECIDED_BY.items():
        gates = [verdict.gate for verdict in verdicts if verdict.kind == kind and not verdict.is_decided]
        if gates:
            yield f"{UNDECIDED}: {', '.join(gates)}; decided by {command}"


def print_table(result: "RunResult") -> None:
    out = console()
    if result.verdicts:
        out.print(table(result.verdicts))
    out.print(f"{result.outcome.label} (exit {result.exit_code}): {result.why}", markup=False)
    line(out, f"run {result.run.path}")
    if result.run.report.exists():
        line(out, f"report {result.run.report}")


def document(result: "RunResult") -> dict[str, object]:
    """Give result.json with the run's directory; where a full disk kept the file from being written, the outcome."""
    from trainwright.jsonfile import read_json

    recorded = read_json(result.run.result) if result.run.result.exists() else {}
    ended = {"outcome": result.outcome.label, "exit_code": result.exit_code, "why": result.why, "step": result.step}
    return {"directory": str(result.run.path), **recorded, **ended}
