"""report.html of a run: one page that stands alone, drawn from the run's own files and nothing else."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from trainwright import charts
from trainwright.charts import Point, Series
from trainwright.contract.judge import Verdict, decides_exit
from trainwright.contract.run import judge_run
from trainwright.durations import duration
from trainwright.errors import StoreError
from trainwright.files import write_atomically
from trainwright.jsonfile import read_json
from trainwright.metrics import Event, StepMetrics, ValidationRow, best_of
from trainwright.rundir import Attempt, Result, RunDirectory

LAST_EVENTS: Final = 40
TAIL: Final = 3.0  # the histogram ends at this multiple of p95 where a few steps took much longer


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
        figures=list(_figures(records)),
        environment=list(_environment(records.environment)),
        events=records.events[-LAST_EVENTS:],
        event_count=len(records.events),
        event_kinds=Counter(event.kind for event in records.events).most_common(),
        detail=_text,
        short=charts.short,
        config=records.run.config.read_text(encoding="utf-8"),
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


# -- figures ---------------------------------------------------------------------------------------------------------


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A chart with its title, what it shows, and what must be known about it. `wide` takes the page's width."""

    title: str
    about: str
    svg: Markup
    notes: Sequence[str] = ()
    wide: bool = False


def _figures(records: Records) -> Iterator[Figure]:
    rows = records.steps
    if rows or records.validations:
        yield _loss(rows, records.validations)
    if records.validations and not _shares_axis(records.validations):
        yield _validation(records.validations)
    if rows:
        unit = "samples" if isinstance(rows[-1].samples_per_sec, float | int) else "tokens"
        yield _measured(rows, "Learning rate", "as the optimizer had it", lambda row: row.lr, "lr", "learning rate")
        about = "global L2 norm over all parameters, before clipping"
        yield _measured(rows, "Gradient norm", about, lambda row: row.grad_norm, "norm", "L2 norm")
        yield _wall_time(rows, {attempt.start().step for attempt in records.attempts})
        about = "of each step, waiting for data included"
        yield _measured(rows, "Throughput", about, lambda row: row.throughput, unit, f"{unit} per second")


def _points(rows: Sequence[StepMetrics], value: Callable[[StepMetrics], float | None]) -> list[Point]:
    """Give one point a row, and a gap where steps have no row."""
    points: list[Point] = []
    for row in rows:
        if points and row.step > points[-1][0] + 1:
            points.append((points[-1][0] + 1, None))
        points.append((row.step, value(row)))
    return points


def _measured(
    rows: Sequence[StepMetrics], title: str, about: str, value: Callable[[StepMetrics], float], name: str, unit: str
) -> Figure:
    points = _points(rows, value)
    svg = charts.line_chart([Series(name, points)], x_unit="step", y_unit=unit)
    return Figure(title=title, about=about, svg=Markup(svg), notes=_not_finite(points))  # noqa: S704  escaped in charts


def _shares_axis(validations: Sequence[ValidationRow]) -> bool:
    """Tell whether the validations measure a loss; any other metric has a scale of its own."""
    return all(row.metric.endswith("loss") for row in validations)


def _loss(rows: Sequence[StepMetrics], validations: Sequence[ValidationRow]) -> Figure:
    series = [Series("training", points := _points(rows, lambda row: row.train_loss))]
    notes, about = _not_finite(points), "mean over the items of each step"
    if validations and _shares_axis(validations):
        held_out: list[Point] = [(row.step, row.value) for row in validations]
        series.append(Series("validation", held_out, "second", dots=True))
        notes = [*notes, *_not_finite(held_out, "validation")]
        about += f"; dots: {validations[-1].metric} on held-out data"
    svg = charts.line_chart(series, x_unit="step", y_unit="loss", size=charts.WIDE)
    return Figure(title="Loss", about=about, svg=Markup(svg), notes=notes, wide=True)  # noqa: S704  escaped in charts


def _validation(validations: Sequence[ValidationRow]) -> Figure:
    metric, points = validations[-1].metric, [(row.step, row.value) for row in validations]
    series = Series("validation", points, "second", dots=True)
    svg = charts.line_chart([series], x_unit="step", y_unit=metric, size=charts.WIDE)
    notes = _not_finite(points, "validation")
    about = f"{metric} on held-out data or fixed episodes"
    return Figure(title="Validation", about=about, svg=Markup(svg), notes=notes, wide=True)  # noqa: S704  escaped in charts


def _not_finite(points: Sequence[Point], what: str = "value") -> list[str]:
    bad = [(round(x), y) for x, y in points if y is not None and not math.isfinite(y)]
    if not bad:
        return []
    places = ", ".join(f"{y} at step {x:,}" for x, y in bad[:3]) + (" …" if len(bad) > 3 else "")
    name = what if len(bad) == 1 else f"{what}s"
    return [f"{len(bad):,} {name} not finite: {places}; a gap in the line, a mark on the baseline"]


def _wall_time(rows: Sequence[StepMetrics], first_steps: set[int]) -> Figure:
    """Draw the wall time of the measured steps; the first of each attempt, which warms up, stands apart."""
    measured = [row for row in rows if row.wall_ms_measured]
    steady = sorted(row.wall_ms for row in measured if row.step not in first_steps)
    notes = _first_steps([row for row in measured if row.step in first_steps])
    if len(measured) < len(rows):
        absent = len(rows) - len(measured)
        notes.append(f"{absent:,} of {len(rows):,} rows hold no wall_ms (contract 1.4.0 and older) and are not counted")
    marks = {"median": float(np.median(steady)), "p95": float(np.percentile(steady, 95))} if steady else {}
    shown = [value for value in steady if value <= TAIL * marks["p95"]]
    if len(shown) < len(steady):
        notes.append(f"not drawn: the slowest {len(steady) - len(shown):,} of them, up to {steady[-1]:,.4g} ms")
    labels = [(f"{name} {value:,.4g} ms", value) for name, value in marks.items()]
    svg = charts.histogram(shown, labels, unit="ms")
    about = f"{len(steady):,} steps, without validation and checkpoints"
    return Figure(title="Wall time of a step", about=about, svg=Markup(svg), notes=notes)  # noqa: S704  escaped in charts


def _first_steps(rows: Sequence[StepMetrics]) -> list[str]:
    if not rows:
        return []
    times = ", ".join(f"{row.wall_ms:,.4g} ms (step {row.step:,})" for row in rows[:3]) + (" …" if rows[3:] else "")
    return [f"{'first step' if len(rows) == 1 else 'first steps'}, not counted: {times}"]
