"""The rows of steps.jsonl as columns, a block of lines at a time: the values, and the errors, of `metrics.read_steps`.

Lines with the keys that were seen so far, and with numbers that are finite, are decoded by a type made for those keys.
A block that holds any other line is read row by row: a row has one meaning, and an error one text.
"""

import re
from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa

from trainwright.metrics import MEASURED_STEP_FIELDS, NONFINITE_SUFFIX, THROUGHPUT_FIELDS, Int64, StepMetrics, step_rows
from trainwright.rowfiles import BLOCK_BYTES, line_blocks

NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
OPTIONAL: Final = float | msgspec.UnsetType
REQUIRED_TYPES: Final = {
    "step": Int64,
    "train_loss": float,
    "grad_norm": float,
    "lr": float,
    "gpu_util_pct": float | None,
}
OPTIONAL_TYPES: Final = {
    "wall_ms": Annotated[float, msgspec.Meta(ge=0.0)] | msgspec.UnsetType,
    "tokens_per_sec": OPTIONAL,
    "samples_per_sec": OPTIONAL,
}


def read_step_table(path: Path, *, below: int | None = None, block_bytes: int = BLOCK_BYTES) -> pa.Table:
    """Read steps.jsonl as a table: `step` int64, all else float64, NULL where a value is null or not there.

    Columns: the required fields, throughput, then every extra. `below`: rows from that step on are read and left out.
    Errors: DataError with file and line number for a broken line that is not the torn last one.
    """
    parts: list[pa.Table] = []
    known: dict[str, None] = {}
    number = 1
    for lines in line_blocks(path, block_bytes):
        known |= dict.fromkeys(name for row in step_rows(path, lines[:1], number) for name in row.extra)
        part = _typed(lines, tuple(known), below)
        if part is None:
            rows = list(step_rows(path, lines, number))
            known |= dict.fromkeys(name for row in rows for name in row.extra)
            part = table_of_rows(row for row in rows if below is None or row.step < below)
        parts.append(part)
        number += len(lines)
    return joined(parts)


def table_of_rows(rows: Iterable[StepMetrics]) -> pa.Table:
    """Give rows that were read one by one as a table; absent values are NULL."""
    rows = list(rows)
    columns: dict[str, list[Any]] = {name: [getattr(row, name) for row in rows] for name in MEASURED_STEP_FIELDS}
    columns["wall_ms"] = [row.wall_ms if row.wall_ms_measured else None for row in rows]
    for name in THROUGHPUT_FIELDS:
        columns[name] = [getattr(row, name) for row in rows]
    for name in dict.fromkeys(name for row in rows for name in row.extra):
        columns[name] = [row.extra.get(name) for row in rows]
    return _table(columns)


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Give the rows of all tables, in order; a column that one of them lacks is NULL there."""
    filled = [table for table in tables if table.num_rows]
    if not filled:
        names = (*MEASURED_STEP_FIELDS, THROUGHPUT_FIELDS[0])
        return pa.schema([(name, pa.int64() if name == "step" else pa.float64()) for name in names]).empty_table()
    whole = pa.concat_tables(filled, promote_options="default")
    first = [name for name in (*MEASURED_STEP_FIELDS, *THROUGHPUT_FIELDS) if name in whole.column_names]
    return whole.select([*first, *(name for name in whole.column_names if name not in first)])


def _typed(lines: Sequence[bytes], extras: Sequence[str], below: int | None) -> pa.Table | None:
    """Give the rows of a block by one type for all its lines; None where a row needs to be looked at by itself."""
    if not all(NAME.fullmatch(name) and not name.endswith(NONFINITE_SUFFIX) for name in extras):
        return None
    try:
        rows = list(map(_decoder(tuple(extras)).decode, lines))
    except (msgspec.MsgspecError, ValueError):
        return None
    names = (*REQUIRED_TYPES, *OPTIONAL_TYPES, *extras)
    table = _table({name: list(map(attrgetter(name), rows)) for name in names})
    if not any(name in table.column_names and not table[name].null_count for name in THROUGHPUT_FIELDS):
        return None
    return table if below is None else _all_or_none(table, below)


def _all_or_none(table: pa.Table, below: int) -> pa.Table | None:
    """Give the rows below a step where that is all of them or none; None where it is some."""
    steps = table["step"].to_numpy()
    if steps.max() < below:
        return table
    return table.slice(0, 0) if steps.min() >= below else None


def _decoder(extras: tuple[str, ...]) -> msgspec.json.Decoder[Any]:
    optional = {**OPTIONAL_TYPES, **dict.fromkeys(extras, OPTIONAL | None)}
    fields: list[Any] = [*REQUIRED_TYPES.items(), *((name, kind, msgspec.UNSET) for name, kind in optional.items())]
    return msgspec.json.Decoder(msgspec.defstruct("StepLine", fields, forbid_unknown_fields=True, gc=False))


def _table(columns: dict[str, list[Any]]) -> pa.Table:
    """Give columns by type; one that no row gives, not even as null, is left out unless it is a required field."""
    given = {
        name: values
        for name, values in columns.items()
        if name in MEASURED_STEP_FIELDS or not all(value is msgspec.UNSET for value in values)
    }
    return pa.table({n: pa.array(v, pa.int64()) if n == "step" else _floats(v) for n, v in given.items()})


def _floats(values: Sequence[float | None | msgspec.UnsetType]) -> pa.Array:
    try:
        return pa.array(values, pa.float64())
    except pa.ArrowException:
        return pa.array([None if value is msgspec.UNSET else value for value in values], pa.float64())
