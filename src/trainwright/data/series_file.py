"""The columns of a CSV or Parquet file that a forecaster names, as arrays: numbers, texts and times."""

import difflib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from trainwright.data.series_options import SeriesOptions
from trainwright.data.series_times import Times
from trainwright.errors import DataError, InputError, about
from trainwright.files import sha256_of_file

ROLES: Final = ("time", "id", "target", "known", "observed", "static")


@dataclass(frozen=True, slots=True)
class Columns:
    """The named columns of a file, row by row. `numbers` are float64, NaN where missing; `texts` None there."""

    path: Path
    sha256: str
    rows: int
    times: Times | None
    ids: Sequence[str] | None
    numbers: Mapping[str, Any]
    texts: Mapping[str, Any]


def read(options: SeriesOptions) -> Columns:
    """Read the columns that `options` names.

    Errors: DataError for a file that is missing or cannot be read, or a value that is not of its column's kind;
    InputError for a column that is not there, told by its key with the nearest right name.
    """
    path = options.path
    if not path.is_file():
        with about("data.path"):
            raise DataError(f"{path}: there is no such file; name a CSV or Parquet file")
    texts = {*options.categorical, *([options.id] if options.id is not None else [])} & set(options.named)
    try:
        names = _names(options)
        _check_names(options, names)
        table = _table(options, texts)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    if not len(table):
        with about("data.path"):
            raise DataError(f"{path}: has no rows; name a file that has some")
    return Columns(
        path=path,
        sha256=sha256_of_file(path),
        rows=len(table),
        times=None if options.time is None else _times(path, options.time, table[options.time]),
        ids=None if options.id is None else _ids(path, options.id, table[options.id]),
        numbers={n: _numbers(path, n, table[n]) for n in options.named if n not in {*texts, options.time}},
        texts={n: np.array(_texts(table[n]).to_pylist(), object) for n in sorted(texts)},
    )


def _is_parquet(options: SeriesOptions) -> bool:
    return options.path.suffix.lower() in {".parquet", ".pq"}


def _reading(options: SeriesOptions) -> Any:
    return pyarrow.csv.ReadOptions(column_names=options.columns)


def _names(options: SeriesOptions) -> list[str]:
    if _is_parquet(options):
        return list(pyarrow.parquet.read_schema(options.path).names)
    with pyarrow.csv.open_csv(options.path, _reading(options)) as opened:
        return list(opened.schema.names)


def _check_names(options: SeriesOptions, names: Sequence[str]) -> None:
    for role in ROLES:
        given = getattr(options, role)
        for name in [given] if isinstance(given, str) else given or []:
            if name not in names:
                nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
                advice = f"did you mean {nearest[0]!r}? " if nearest else ""
                with about(f"data.{role}"):
                    raise InputError(f"{options.path} has no column {name!r}; {advice}it has {', '.join(names)}")
            if names.count(name) > 1:
                raise DataError(f"{options.path} has {names.count(name)} columns {name!r}; rename all but one")


def _table(options: SeriesOptions, texts: set[str]) -> Any:
    wanted = list(dict.fromkeys(options.named))
    if _is_parquet(options):
        return pyarrow.parquet.read_table(options.path, columns=wanted)
    kinds = {n: pa.string() if n in texts else pa.float64() for n in wanted if n != options.time}
    converted = pyarrow.csv.ConvertOptions(column_types=kinds, include_columns=wanted)
    return pyarrow.csv.read_csv(options.path, _reading(options), convert_options=converted)


def _texts(column: Any) -> Any:
    """Give texts, null where one is missing or empty; NA is a text as any other."""
    texts = column.cast(pa.string())
    return pc.if_else(pc.equal(texts, ""), None, texts)


def _numbers(path: Path, name: str, column: Any) -> Any:
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_boolean(column.type)):
        raise DataError(
            f"{path}: column {name!r} is of type {column.type}, expected numbers; name it under data.categorical"
        )
    # null and NaN both stand for a missing value
    values = np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)
    infinite = np.flatnonzero(np.isinf(values))
    if len(infinite):
        raise DataError(
            f"{path}: column {name!r}, row {infinite[0] + 1}: {values[infinite[0]]}; expected a finite number"
        )
    return values


def _ids(path: Path, name: str, column: Any) -> list[str]:
    texts = _texts(column)
    if texts.null_count:
        row = pc.index(texts.is_null(), value=True).as_py()
        raise DataError(f"{path}: the id {name!r} is missing in row {row + 1}; every row belongs to a series")
    return list(texts.to_pylist())


def _times(path: Path, name: str, column: Any) -> Times:
    if column.null_count:
        row = pc.index(column.is_null(), value=True).as_py()
        raise DataError(f"{path}: the time {name!r} is missing in row {row + 1}; every row has its time")
    if pa.types.is_integer(column.type):
        return np.asarray(column.to_numpy(), np.int64)
    column = _parsed(column)
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        return np.asarray(column.to_numpy(), "datetime64[us]")
    raise DataError(
        f"{path}: the time {name!r} is of type {column.type}, as in {column[0].as_py()!r}; expected ISO 8601, as "
        "2016-07-01 00:00:00, or whole numbers"
    )


def _parsed(column: Any) -> Any:
    """Give the times that texts tell, in UTC where they have a zone; the texts where one tells none."""
    for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return column.cast(kind) if pa.types.is_string(column.type) else column
    return column
