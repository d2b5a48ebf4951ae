"""A contract's own falsifiers, as tables: a gate holds for its good fixtures and fails for its bad ones."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from trainwright.contract.readings import Facts
from trainwright.errors import InputError


def facts_of_fixture(fixture: Mapping[str, Mapping[str, Any]]) -> Facts:
    """Make tables of a fixture; a value alone fills its column. Errors: InputError for columns of unequal length."""
    return {name: _table(name, columns) for name, columns in fixture.items()}


def _table(name: str, columns: Mapping[str, Any]) -> pa.Table:
    lengths = {len(values) for values in columns.values() if isinstance(values, list)} or {1}
    if len(lengths) > 1:
        raise InputError(
            f"table {name}: columns of {' and '.join(map(str, sorted(lengths)))} values; give them one length"
        )
    length = lengths.pop()
    whole = {key: values if isinstance(values, list) else [values] * length for key, values in columns.items()}
    try:
        return pa.table({key: pa.array(_as_one_kind(values)) for key, values in whole.items()})
    except (pa.ArrowException, TypeError) as error:
        raise InputError(f"table {name}: a column mixes kinds of values: {error}") from error


def _as_one_kind(values: list[Any]) -> list[Any]:
    """Let whole numbers stand among floats."""
    if any(type(value) is float for value in values):
        return [float(value) if type(value) is int else value for value in values]
    return values
