"""The charts of a report: what the rows of a run hold, and the panels that its trainable left on record."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec
import numpy as np
from markupsafe import Markup

from trainwright import charts, panels
from trainwright.charts import Band, Point, Series
from trainwright.illustrations import Illustration, Panel
from trainwright.metrics import StepMetrics, ValidationRow

TAIL: Final = 3.0  # the histogram ends at this multiple of p95 where a few steps took much longer
ENV_STEPS: Final = "env_steps"  # of agents; the axis of their return curve
LIMIT: Final = "_limit"  # ends the name of a bound, drawn beside what it bounds


class Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """What the charts are made of. `metrics` and `measures` are declared: name → unit, of steps and of validations."""

    steps: Sequence[StepMetrics]
    validations: Sequence[ValidationRow]
    first_steps: frozenset[int]
    metrics: Mapping[str, str] = {}
    measures: Mapping[str, str] = {}
    illustration: Illustration | None = None


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A chart with its title, what it shows, and what must be known about it. `wide` takes the page's width."""

    title: str
    about: str
    svg: Markup
    notes: Sequence[str] = ()
    wide: bool = False


def figures(drawn: Drawn) -> Iterator[Figure]:
    """Give the charts in the order of the page: what every run has, what this one declared, what it shows of itself."""
    rows, validations = drawn.steps, drawn.validations
    if rows or validations:
        yield _loss(rows, validations)
    if validations and not _shares_axis(validations):
        yield _validation(rows, validations)
    if rows:
        unit = "samples" if isinstance(rows[-1].samples_per_sec, float | int) else "tokens"
        yield _measured(rows, "Learning rate", "as the optimizer had it", lambda row: row.lr, "lr", "learning rate")
        about = "global L2 norm over all parameters, before clipping"
        yield _measured(rows, "Gradient norm", about, lambda row: row.grad_norm, "norm", "L2 norm")
        yield _wall_time(rows, drawn.first_steps)
        about = "of each step, waiting for data included"
        yield _measured(rows, "Throughput", about, lambda row: row.throughput, unit, f"{unit} per second")
    yield from _declared(drawn)
    if drawn.illustration:
        yield from (_panel(panel, drawn.illustration.step) for panel in drawn.illustration.panels)


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


def _validation(rows: Sequence[StepMetrics], validations: Sequence[ValidationRow]) -> Figure:
    """Draw what validations measured, with its standard error, over environment steps where an agent counted them.

    A metric of the same name that every step records (the mean return of training episodes) is drawn beside it.
    """
    metric, place = validations[-1].metric, _place(rows)
    points = [(place(row.step), row.value) for row in validations]
    trained = [(place(row.step + 1), row.extra.get(metric)) for row in rows if metric in row.extra]
    series = [Series("training", trained)] if charts.drawn_values(trained) else []
    errors = [(x, y, row.standard_error) for (x, y), row in zip(points, validations, strict=True)]
    band = Band("± 1 standard error", [(x, y - e, y + e) for x, y, e in errors if e is not None and math.isfinite(y)])
    svg = charts.line_chart(
        [*series, Series("validation", points, "second", dots=True)],
        x_unit="env steps" if _counts_env_steps(rows) else "step",
        y_unit=metric,
        size=charts.WIDE,
        bands=[band] if band.points else [],
    )
    notes = _not_finite([(row.step, row.value) for row in validations], "validation")
    about = f"{metric} on held-out data or fixed episodes" + (", ± 1 standard error" if band.points else "")
    about += "; line: that of training" if series else ""
    return Figure(title=_words(metric), about=about, svg=Markup(svg), notes=notes, wide=True)  # noqa: S704  escaped in charts


def _counts_env_steps(rows: Sequence[StepMetrics]) -> bool:
    return bool(rows) and rows[-1].extra.get(ENV_STEPS) is not None


def _place(rows: Sequence[StepMetrics]) -> Callable[[int], float]:
    """Give the function from a number of updates to the environment steps by then; to itself where none are counted."""
    if not _counts_env_steps(rows):
        return float
    counted = [row for row in rows if row.extra.get(ENV_STEPS) is not None]
    steps = [row.step for row in counted]

    def env_steps(updates: int) -> float:
        before = bisect_left(steps, updates)
        return counted[before - 1].extra[ENV_STEPS] or 0.0 if before else 0.0

    return env_steps


def _declared(drawn: Drawn) -> Iterator[Figure]:
    """Draw each declared number that was recorded and is not shown elsewhere."""
    metrics, of_steps, of_validations = drawn.metrics, "of each step", "of each validation"
    shown = {ENV_STEPS, drawn.validations[-1].metric if drawn.validations else ""}
    shown |= {bound for name in metrics if (bound := _bound_of(name, metrics))}
    for name, unit in metrics.items():
        if name not in shown:
            names = [name, *filter(None, [_bound_of(name, metrics)])]
            lines = [(each, _points(drawn.steps, _recorded(each))) for each in names]
            yield from _small(name, f"{of_steps}, {unit}", unit, lines)
    for name, unit in drawn.measures.items():
        points: list[Point] = [(row.step, row.measures.get(name)) for row in drawn.validations]
        yield from _small(name, f"{of_validations}, {unit}", unit, [(name, points)])


def _recorded(name: str) -> Callable[[StepMetrics], float | None]:
    return lambda row: row.extra.get(name)


def _bound_of(name: str, metrics: Mapping[str, str]) -> str | None:
    """Give the metric that bounds this one: `q_limit` of `q_mean` or `q`, where it is declared."""
    stems = (name, name.rpartition("_")[0])
    return next((f"{stem}{LIMIT}" for stem in stems if f"{stem}{LIMIT}" in metrics and not name.endswith(LIMIT)), None)


def _small(name: str, about: str, unit: str, lines: Sequence[tuple[str, Sequence[Point]]]) -> Iterator[Figure]:
    if not any(y is not None for _, points in lines for _, y in points):
        return
    styles: Sequence[Literal["first", "second"]] = ("first", "second")
    names = [each.rpartition("_")[2] for each, _ in lines] if len(lines) > 1 else ["last"]
    series = [Series(n, points, style) for n, (_, points), style in zip(names, lines, styles, strict=False)]
    svg = charts.line_chart(series, x_unit="step", y_unit=unit)
    notes = [note for _, points in lines for note in _not_finite(points)]
    yield Figure(title=_words(name), about=about, svg=Markup(svg), notes=notes)  # noqa: S704  escaped in charts


def _words(name: str) -> str:
    words = name.replace("_", " ")
    return words[:1].upper() + words[1:]


def _panel(panel: Panel, step: int) -> Figure:
    svg = Markup(panels.draw(panel))  # noqa: S704  escaped in panels
    about = f"{panel.about}; at step {step:,}"
    return Figure(title=panel.title, about=about, svg=svg, wide=panels.is_wide(panel))


def _not_finite(points: Sequence[Point], what: str = "value") -> list[str]:
    bad = [(round(x), y) for x, y in points if y is not None and not math.isfinite(y)]
    if not bad:
        return []
    places = ", ".join(f"{y} at step {x:,}" for x, y in bad[:3]) + (" …" if len(bad) > 3 else "")
    name = what if len(bad) == 1 else f"{what}s"
    return [f"{len(bad):,} {name} not finite: {places}; a gap in the line, a mark on the baseline"]


def _wall_time(rows: Sequence[StepMetrics], first_steps: frozenset[int]) -> Figure:
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
