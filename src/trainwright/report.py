"""report.html of a run: one page that stands alone, drawn from the run's own files and nothing else."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined

from trainwright import charts
from trainwright.contract.judge import Verdict, decides_exit
from trainwright.contract.run import judge_run
from trainwright.durations import duration
from trainwright.errors import StoreError
from trainwright.files import write_atomically
from trainwright.illustrations import Illustration
from trainwright.jsonfile import read_json
from trainwright.metrics import Event, StepMetrics, ValidationRow, best_of
from trainwright.plots import Drawn, figures
from trainwright.rundir import Attempt, Result, RunDirectory

LAST_EVENTS: Final = 40


class Records(msgspec.Struct, frozen=True, kw_only=True):
    """All that the page is drawn from. `result` is None for a run that has not ended."""

    run: RunDirectory
    result: Result | None
    environment: dict[str, Any]
    attempts: list[Attempt]
    steps: list[StepMetrics]
    validations: list[ValidationRow]
    events: list[Event]
    torn: list[Path]
    illustration: Illustration | None
    verdicts: Sequence[Verdict]


def write_report(run: RunDirectory) -> Path:
    """Write report.html of `run`, whatever state the run is in; an earlier one is replaced whole.

    Errors: DataError for a broken row, InputError for a broken file, StoreError when the page cannot be written.
    """
    page = render(read_records(run))
    try:
        write_atomically(run.report, page.encode())
    except OSError as error:
        raise StoreError(f"{run.report}: the report cannot be written: {error.strerror}") from error
    return run.report


def read_records(run: RunDirectory) -> Records:
    """Read the run's files."""
    result = run.read_result()
    environment: dict[str, Any] = read_json(run.environment) if run.environment.exists() else {}
    return Records(
        run=run,
        result=result,
        environment=environment,
        attempts=run.attempts(),
        steps=run.read_steps(),
        validations=run.read_validations(),
        events=run.read_events(),
        torn=run.torn_files(),
        illustration=run.read_illustration(),
        verdicts=msgspec.convert(result.verdicts, list[Verdict]) if result else judge_run(run) if environment else [],
    )


def render(records: Records) -> str:
    """Give the page as HTML."""
    templates = Environment(
        loader=PackageLoader("trainwright"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return templates.get_template("report.html").render(
        run=records.run,
        result=records.result,
        facts=_header(records),
        verdicts=records.verdicts,
        failing=[verdict.gate for verdict in records.verdicts if decides_exit(verdict)],
        has_contract=records.run.contract.exists(),
        torn=[file.relative_to(records.run.path).as_posix() for file in records.torn],
        figures=list(figures(_drawn(records))),
        environment=list(_environment(records.environment)),
        events=records.events[-LAST_EVENTS:],
        event_count=len(records.events),
        event_kinds=Counter(event.kind for event in records.events).most_common(),
        detail=_text,
        short=charts.short,
        config=records.run.config.read_text(encoding="utf-8"),
    )


def _drawn(records: Records) -> Drawn:
    starts = [attempt.start() for attempt in records.attempts]
    return Drawn(
        steps=records.steps,
        validations=records.validations,
        first_steps=frozenset(start.step for start in starts),
        metrics={name: unit for start in starts for name, unit in start.metrics.items()},
        measures={name: unit for start in starts for name, unit in start.measures.items()},
        illustration=records.illustration,
    )


# -- words -----------------------------------------------------------------------------------------------------------


def _header(records: Records) -> Iterator[tuple[str, str]]:
    environment, result = records.environment, records.result
    parameters = environment.get("parameters")
    yield "model", str(environment.get("model_type", "not recorded"))
    yield "parameters", f"{parameters:,}" if isinstance(parameters, int) else "not recorded"
    yield "device", str(environment.get("device_name") or environment.get("device") or "not recorded")
    yield "steps", _steps_done(records)
    yield "best validation", _best(records)
    if result:
        yield "time", ", ".join(f"{name} {duration(seconds)}" for name, seconds in result.seconds.items())
    if records.attempts:
        start = records.attempts[0].start()
        yield "started", start.time
        yield "attempts", str(len(records.attempts))
        if start.parent:
            yield "goes on from", f"{start.checkpoint} of {start.parent}"


def _steps_done(records: Records) -> str:
    done = records.result.step if records.result else records.steps[-1].step + 1 if records.steps else 0
    planned = records.environment.get("planned_steps")
    return f"{done:,} of {planned:,}" if isinstance(planned, int) else f"{done:,}"


def _best(records: Records) -> str:
    rows = records.validations
    if not rows or rows[-1].best is None:
        return "none"
    row = best_of(rows)
    return f"{rows[-1].metric} {rows[-1].best:.6g} {f'at step {row.step:,}' if row else 'before this run'}"


def _text(detail: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_value(value)}" for name, value in detail.items())


def _value(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _environment(environment: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in environment.items():
        if isinstance(value, dict) and value:
            yield from _environment(value, f"{prefix}{name} · ")
        else:
            yield f"{prefix}{name}", "none" if value in (None, {}, []) else _value(value)
