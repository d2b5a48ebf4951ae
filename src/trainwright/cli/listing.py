"""`runs ls` and `runs show`: what the files of runs say, as a table for people or as one JSON document."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Group
from rich.table import Table
from rich.text import Text

from trainwright.cli.output import console, grid, print_json
from trainwright.durations import duration
from trainwright.errors import InputError
from trainwright.metrics import StepMetrics, ValidationRow, best_of
from trainwright.rundir import RunDirectory, Start
from trainwright.summaries import CheckpointSummary, Summary, checkpoints_of, standing, summarise, summarise_all

STATE_STYLES: Final = {"done": "green", "running": "bold cyan", "unfinished": "yellow", "damaged": "bold red"}
CHECKPOINT_STYLES: Final = {"kept": "green", "damaged": "bold red", "incomplete": "yellow"}
NOTHING: Final = "–"


# -- runs ls ---------------------------------------------------------------------------------------------------------


def print_runs(runs_dir: Path, *, json: bool) -> None:
    """Print the runs below `runs_dir`, newest first. A damaged one is listed with its reason."""
    summaries = summarise_all(runs_dir, datetime.now(UTC))
    if json:
        print_json({"runs_dir": str(runs_dir), "runs": summaries})
    elif not summaries:
        print(f"no runs below {runs_dir}")
    else:
        console().print(_runs_table(summaries))


def _runs_table(summaries: list[Summary]) -> Table:
    table = grid("run", "state", "step>", "best validation>", "model", "device", "age>")
    for one in summaries:
        if one.state == "damaged":
            table.add_row(Text(one.run), _state(one.state), "", "", Text(one.reason), "", "")
            continue
        best = NOTHING if one.best_validation is None else f"{one.best_validation:.6g}"
        age = NOTHING if one.age_seconds is None else duration(one.age_seconds)
        table.add_row(
            Text(one.run),
            _state(one.state),
            _progress(one),
            best,
            Text(one.model_type or ""),
            Text(one.device or ""),
            age,
        )
    return table


def _progress(summary: Summary) -> str:
    done = f"≥{summary.step_at_least}" if summary.step is None else str(summary.step)
    return f"{done}/{summary.planned_steps}" if summary.planned_steps is not None else done


# -- runs show -------------------------------------------------------------------------------------------------------


def print_run(run: RunDirectory, *, json: bool) -> None:
    """Print one run: how it ended, its attempts, its last rows, its checkpoints, its verdicts, where time went.

    Errors: DataError for a broken row, InputError for a broken file.
    """
    attempts = run.attempts()
    result, _ = standing(run)
    summary = summarise(run, datetime.now(UTC))
    rows, best = run.read_steps(), best_of(run.read_validations())
    document = {
        **msgspec.structs.asdict(summary),
        "directory": str(run.path),
        "exit_code": result.exit_code if result else None,
        "step_at_least": max(summary.step_at_least, rows[-1].step + 1 if rows else 0),
        "attempts": [attempt.start() for attempt in attempts],
        "last_row": _decoded(rows[-1]) if rows else None,
        "best_validation_row": _decoded(best) if best else None,
        "checkpoints": list(checkpoints_of(run)),
        "verdicts": result.verdicts if result else [],
        "seconds": result.seconds if result else {},
    }
    if json:
        print_json(document)
    else:
        _print_parts(run, summary, document)


def _decoded(row: StepMetrics | ValidationRow) -> dict[str, Any]:
    """Give the row as its file holds it, a number that is not finite as null beside its name."""
    decoded: dict[str, Any] = msgspec.json.decode(row.encode())
    return decoded


def _print_parts(run: RunDirectory, summary: Summary, document: dict[str, Any]) -> None:
    out = console()
    out.print(_facts_table(run, summary, document))
    if document["attempts"]:
        out.print("\nattempts", style="bold")
        out.print(_attempts_table(document["attempts"]))
    if document["checkpoints"]:
        out.print("\ncheckpoints", style="bold")
        out.print(_checkpoints_table(document["checkpoints"]))
    if document["verdicts"]:
        out.print("\nverdicts", style="bold")
        out.print(_verdicts_table(run, document["verdicts"]))
    elif run.contract.exists():
        out.print(f"\nverdicts: none yet; judge it as it stands with: trainwright gates {run.id}", markup=False)


def _verdicts_table(run: RunDirectory, recorded: list[dict[str, Any]]) -> Group:
    from trainwright.cli import verdicts
    from trainwright.contract.judge import Verdict

    try:
        return verdicts.table(msgspec.convert(recorded, list[Verdict]))
    except msgspec.ValidationError as error:
        raise InputError(f"{run.result}: verdicts are not what they should be: {error}") from error


def _facts_table(run: RunDirectory, summary: Summary, document: dict[str, Any]) -> Table:
    reason, step = f": {summary.reason}" if summary.reason else "", document["step_at_least"]
    planned = "" if summary.planned_steps is None else f" of {summary.planned_steps}"
    facts = {
        "run": str(run.path),
        "state": f"{summary.state}{reason}",
        "step": f"{step}{planned}",
        "model": summary.model_type,
        "device": summary.device,
        "started": summary.started and f"{summary.started}, {duration(summary.age_seconds or 0.0)} ago",
        "last row": _line(document["last_row"]),
        "best validation": _best(document["best_validation_row"]),
        "time": ", ".join(f"{name} {duration(seconds)}" for name, seconds in document["seconds"].items()),
    }
    grid = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        grid.add_row(Text(name, style="dim"), Text(value or NOTHING, overflow="fold"))
    return grid


def _line(row: dict[str, Any] | None) -> str:
    return ", ".join(f"{name} {_number(value)}" for name, value in (row or {}).items())


def _best(row: dict[str, Any] | None) -> str:
    return f"{row['metric']} {_number(row['value'])} at step {row['step']}, in {row['checkpoint']}" if row else ""


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else NOTHING if value is None else str(value)


def _attempts_table(starts: list[Start]) -> Table:
    table = grid("attempt>", "started", "from step>", "from checkpoint", "device")
    for start in starts:
        origin = f"{start.checkpoint or 'the beginning'}{f' of {start.parent}' if start.parent else ''}"
        table.add_row(str(start.attempt), start.time, str(start.step), Text(origin), start.device)
    return table


def _checkpoints_table(checkpoints: list[CheckpointSummary]) -> Table:
    table = grid("checkpoint", "state", "size>", "why")
    for one in checkpoints:
        size = f"{one.size_bytes:,} B" if one.size_bytes else NOTHING
        table.add_row(one.name, Text(one.state, style=CHECKPOINT_STYLES.get(one.state, "dim")), size, Text(one.reason))
    return table


# -- printing --------------------------------------------------------------------------------------------------------


def _state(state: str) -> Text:
    return Text(state.replace("_", " "), style=STATE_STYLES.get(state, "red"))
