"""A contract as the judge needs it: every expression accepted, every table and column known."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from trainwright.contract import holds, schema
from trainwright.contract.expressions import Expression, Parser
from trainwright.errors import InputError
from trainwright.metrics import COMPUTED_OF_VALIDATIONS, VALIDATION_FIELDS

OPEN: Final[frozenset[str]] = frozenset()  # columns that the environment or a command decides

TABLES: Final[Mapping[str, frozenset[str]]] = {
    "steps": frozenset({"step", "tokens", "samples", "gpu_util_absent"}),  # and, as of validations, the contract's own
    "validations": frozenset({*VALIDATION_FIELDS, *COMPUTED_OF_VALIDATIONS}),
    "events": frozenset({"time", "kind", "step", "attempt", "outcome", "first_loss", "last_loss"}),
    "devices": frozenset(
        {"time", "uuid", "index", "pid", "process", "used_mib", "utilisation_pct", "power_w", "temperature_c"}
        | {"attempt", "own", "seconds"}
    ),
    "environment": OPEN,
    "config": OPEN,
    "checkpoints": OPEN,
    "audits": OPEN,
    "checks": OPEN,
    "baselines": OPEN,
}
DECLARABLE: Final = ("steps", "validations")
ROWS: Final = re.compile(r"\s*([a-z_]+)(?:\s+where\s+(.+))?", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that a figure is computed over: a table, less the rows for which `condition` is not true."""

    text: str
    table: str
    condition: Expression | None

    @property
    def sql(self) -> str:
        return f'FROM "{self.table}" AS t' + (f" WHERE {self.condition.sql}" if self.condition else "")


@dataclass(frozen=True, slots=True)
class Figure:
    """One number computed from rows."""

    name: str
    rows: Rows
    value: Expression


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate of a contract with its expressions accepted. `entry` is what stands in the file."""

    entry: schema.Gate
    rows: Rows
    figures: tuple[Figure, ...]
    holds: holds.Holds

    @property
    def id(self) -> str:
        return self.entry.id


@dataclass(frozen=True, slots=True)
class Contract:
    """A contract, checked. `text` is the file as it was read, `name` where from."""

    entry: schema.ContractFile
    gates: tuple[Gate, ...]
    name: str
    text: str

    @property
    def id(self) -> str:
        return self.entry.id

    @property
    def version(self) -> str:
        return self.entry.version


def accept_gate(parser: Parser, entry: schema.Gate, declared: schema.Declared) -> Gate:
    """Check a gate's expressions, tables and columns. Errors: InputError that begins with the gate's key."""
    with _told_at("rows"):
        rows = _rows(parser, entry.rows, declared)
    figures = tuple(_figure(parser, name, figure, rows, declared) for name, figure in entry.figures.items())
    if all(figure.rows != rows for figure in figures):
        raise KeyedError("rows", f"no figure is computed over {rows.text!r}; each gate has one that is")
    with _told_at("holds"):
        decision = holds.accept(parser, entry.holds, frozenset(entry.figures))
    return Gate(entry, rows, figures, decision)


def _figure(parser: Parser, name: str, entry: str | schema.OwnRows, rows: Rows, declared: schema.Declared) -> Figure:
    with _told_at(f"figures.{name}"):
        if isinstance(entry, schema.OwnRows):
            rows, entry = _rows(parser, entry.rows, declared), entry.value
        value = parser.figure(entry)
        if not value.columns and "count(*)" not in value.sql:
            raise InputError(f"{entry!r} is a constant; a figure is computed from rows, as in max(wall_ms) or count(*)")
        _check_columns(rows.table, value, declared)
    return Figure(name, rows, value)


@contextmanager
def _told_at(key: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise KeyedError(key, str(error)) from error


class KeyedError(InputError):
    """An error in one key of a gate; `key` is its path below the gate."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}")
        self.key = key


def _rows(parser: Parser, text: str, declared: schema.Declared) -> Rows:
    match = ROWS.fullmatch(text)
    if not match:
        raise InputError(f"{text!r}: expected <table> or <table> where <condition>, as in steps where step >= 20")
    table, condition = match[1], match[2]
    if table not in TABLES:
        raise InputError(f"unknown table {table!r}; tables: {', '.join(TABLES)}")
    accepted = parser.condition(condition) if condition else None
    if accepted:
        _check_columns(table, accepted, declared)
    return Rows(" ".join(text.split()), table, accepted)


def _check_columns(table: str, expression: Expression, declared: schema.Declared) -> None:
    known = TABLES[table] | declared.get(table, OPEN)
    unknown = sorted(expression.columns - known) if known else []
    if unknown:
        advice = "; a metric of the trainable is declared under metrics" if table in DECLARABLE else ""
        raise InputError(f"unknown column {unknown[0]!r} of table {table}; known: {', '.join(sorted(known))}{advice}")
