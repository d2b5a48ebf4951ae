"""Figures read from tables: each with what makes it no figure at all, or one that no bound can hold for."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from trainwright.contract.expressions import first_line
from trainwright.contract.rules import Figure, Rows

Facts: TypeAlias = Mapping[str, pa.Table]


@dataclass(frozen=True, slots=True)
class Reading:
    """A figure as read over `rows` rows, with the NULL cells of each column that it read.

    `missing` says why there is no figure; `not_finite` which bad number makes it one that is not finite.
    """

    value: float | None
    rows: int = 0
    nulls: Mapping[str, int] = field(default_factory=dict)
    missing: str = ""
    not_finite: str = ""


@contextmanager
def registered(connection: Any, facts: Facts) -> Iterator[None]:
    """Show the tables of `facts` to the connection, straight from memory."""
    names = [name for name, table in facts.items() if table.num_columns]
    try:
        for name in names:
            connection.register(name, facts[name])
        yield
    finally:
        for name in names:
            connection.unregister(name)


def read_figures(connection: Any, facts: Facts, figures: Sequence[Figure], *, ignore: bool) -> dict[str, Reading]:
    """Read figures over registered tables; those over the same rows in one query. `ignore`: NULLs are let pass."""
    readings: dict[str, Reading] = {}
    for rows in dict.fromkeys(figure.rows for figure in figures):
        group = [figure for figure in figures if figure.rows == rows]
        readings |= _read_group(connection, facts.get(rows.table), rows, group, ignore=ignore)
    return {figure.name: readings[figure.name] for figure in figures}


def _read_group(
    connection: Any, table: pa.Table | None, rows: Rows, group: Sequence[Figure], *, ignore: bool
) -> dict[str, Reading]:
    problem = _selection_problem(table, rows, ignore=ignore)
    if table is None or problem:
        return dict.fromkeys((figure.name for figure in group), problem or Reading(None))
    readings = {figure.name: _absent(figure.value.columns, table, rows) for figure in group}
    present = [figure for figure in group if readings[figure.name] is None]
    readings |= _measured(connection, table, rows, present, ignore=ignore)
    return {name: reading for name, reading in readings.items() if reading}


def _selection_problem(table: pa.Table | None, rows: Rows, *, ignore: bool) -> Reading | None:
    """Say why these rows cannot be selected: NULLs and bad numbers in a condition would drop rows in silence."""
    if table is None:
        return Reading(None, missing=f"table {rows.table} was not recorded")
    if not table.num_rows:
        return Reading(None, missing=f"table {rows.table} has no rows")
    if rows.condition is None:
        return None
    absent = _absent(rows.condition.columns, table, rows)
    if absent:
        return absent
    for name in sorted(rows.condition.valued - rows.condition.finite_tested):
        if _is_float(table, name) and not pc.all(pc.is_finite(table[name])).as_py():
            return Reading(math.nan, not_finite=f"rows are selected by {name}, which is not finite in some")
    for name in sorted(rows.condition.columns - rows.condition.null_tested):
        if table[name].null_count and not ignore:
            return Reading(None, missing=f"{table[name].null_count} of {table.num_rows} rows hold no {name}")
    return None


def _absent(columns: Iterable[str], table: pa.Table, rows: Rows) -> Reading | None:
    absent = sorted(set(columns) - set(table.column_names))
    return Reading(None, missing=f"column {absent[0]} of {rows.table} was never recorded") if absent else None


def _is_float(table: pa.Table, name: str) -> bool:
    return bool(pa.types.is_floating(table.schema.field(name).type))


def _measured(
    connection: Any, table: pa.Table, rows: Rows, figures: Sequence[Figure], *, ignore: bool
) -> dict[str, Reading]:
    """Compute figures in one query, beside the rows, NULLs and bad numbers of their columns."""
    if not figures:
        return {}
    names = sorted(set().union(*(figure.value.columns for figure in figures)))
    floats = [name for name in names if _is_float(table, name)]
    wanted = [figure.value.sql for figure in figures]
    wanted += [f'count(t."{name}")' for name in names]
    wanted += [f'count(*) FILTER (WHERE NOT isfinite(t."{name}"))' for name in floats]
    try:
        count, *found = connection.execute(f"SELECT count(*), {', '.join(wanted)} {rows.sql}").fetchall()[0]
    except duckdb.Error as error:
        if len(figures) == 1:
            return {figures[0].name: Reading(None, missing=f"cannot be computed: {first_line(error)}")}
        one_by_one = (_measured(connection, table, rows, [figure], ignore=ignore) for figure in figures)
        return {name: reading for part in one_by_one for name, reading in part.items()}
    numbers = iter(found)
    values = {figure.name: next(numbers) for figure in figures}
    nulls = {name: count - next(numbers) for name in names}
    bad = {name for name in floats if next(numbers)}
    return {f.name: _reading(f, values[f.name], count, nulls, bad, ignore=ignore) for f in figures}


def _reading(figure: Figure, raw: Any, count: int, nulls: Mapping[str, int], bad: set[str], *, ignore: bool) -> Reading:
    value, own = figure.value, {name: nulls[name] for name in sorted(figure.value.columns)}
    if not count:
        return Reading(None, missing=f"no row: {figure.rows.text}")
    spoilt = sorted((value.valued - value.finite_tested) & bad)
    if spoilt:
        return Reading(math.nan, count, own, not_finite=f"rows hold a {spoilt[0]} that is not finite")
    for name in own.keys() - value.null_tested:
        if own[name] == count:
            return Reading(None, count, own, missing=f"{name} was never recorded in {count} rows")
        if own[name] and not ignore:
            return Reading(None, count, own, missing=f"{own[name]} of {count} rows hold no {name}")
    if raw is None or isinstance(raw, str):
        return Reading(None, count, own, missing="is NULL" if raw is None else "is text, and a figure is a number")
    number = float(raw)
    return Reading(number, count, own, not_finite="" if math.isfinite(number) else f"it is {number}")
