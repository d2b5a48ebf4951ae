"""Verdicts as a table for people, and a run's result as a document for programs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from trainwright.cli.output import console
from trainwright.contract.judge import Verdict

if TYPE_CHECKING:
    from trainwright.runs import RunResult

STYLES = {"pass": "green", "fail": "bold red", "no_evidence": "yellow", "not_applicable": "dim"}


def table(verdicts: Sequence[Verdict]) -> Table:
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("gate", "result", "claim", "why"):
        grid.add_column(column, no_wrap=column in {"gate", "result"})
    for verdict in verdicts:
        style = STYLES[verdict.result]
        label = verdict.result.replace("_", " ")
        grid.add_row(verdict.gate, f"[{style}]{label}[/{style}]", escape(verdict.claim), escape(_why(verdict)))
    return grid


def _why(verdict: Verdict) -> str:
    """Give the figures of a gate that passes; of any other the whole reason, with the bound."""
    if verdict.result != "pass":
        return verdict.reason
    figures = ", ".join(f"{name} {value:.6g}" for name, value in verdict.figures.items() if value is not None)
    headroom = verdict.headroom_percent
    return figures if headroom is None else f"{figures}; headroom {headroom:.3g} %"


def print_table(result: "RunResult") -> None:
    out = console()
    if result.verdicts:
        out.print(table(result.verdicts))
    out.print(f"{result.outcome.label} (exit {result.exit_code}): {result.why}", markup=False)
    out.print(f"run {result.run.path}", markup=False, soft_wrap=True)
    if result.run.report.exists():
        out.print(f"report {result.run.report}", markup=False, soft_wrap=True)


def document(result: "RunResult") -> dict[str, object]:
    """Give result.json with the run's directory; where a full disk kept the file from being written, the outcome."""
    from trainwright.rundir import read_json

    recorded = read_json(result.run.result) if result.run.result.exists() else {}
    ended = {"outcome": result.outcome.label, "exit_code": result.exit_code, "why": result.why, "step": result.step}
    return {"directory": str(result.run.path), **recorded, **ended}
