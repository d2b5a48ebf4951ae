"""Facts from the log of another tool: what stands there under the contract's names, and nothing else.

FILE.jsonl           one object a row, under the contract's own names
trainer_state.json   Hugging Face: `log_history`, with loss, learning_rate, and eval_loss in rows of evaluations
metrics.csv          Lightning: a row a logger and moment, those of one step joined; val_loss in rows of validations

The judge gets `steps`, with the columns that the contract knows, and `validations` where rows hold a value. No step is
numbered anew and no field is made up: a gate that needs more than was logged has no evidence, and its verdict says so.
"""

import csv
import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO, TypeAlias

import pyarrow as pa

from trainwright.contract.judge import Verdict, judge
from trainwright.contract.load import load_contract
from trainwright.contract.readings import Facts
from trainwright.contract.rules import Contract
from trainwright.contract.validation_facts import in_order
from trainwright.errors import InputError
from trainwright.metrics import without_siblings

Row: TypeAlias = Mapping[str, Any]
Names: TypeAlias = Mapping[str, Sequence[str]]  # our name -> what the tool may call it, the first that a row has

VALUE: Final = "value"  # what a row of a validation holds
OF_STEPS: Final = ("step", "tokens", "samples")  # and the contract's metrics
HUGGING_FACE: Final[Names] = {"train_loss": ("loss",), "lr": ("learning_rate",), VALUE: ("eval_loss",)}
LIGHTNING: Final[Names] = {"train_loss": ("train_loss", "train_loss_step", "loss"), VALUE: ("val_loss",)}
MOST: Final = (1 << 63) - 1
WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Log:
    """The rows of a log, each with its place for messages, and what its tool calls our columns."""

    name: str
    rows: Sequence[tuple[str, Row]]
    names: Names = field(default_factory=dict)

    @property
    def keys(self) -> list[str]:
        """Give every key that a row has, in the order in which they appear."""
        return list(dict.fromkeys(key for _, row in self.rows for key in row))


def judge_log(path: str, contract: str, given: Sequence[str] = ()) -> list[Verdict]:
    """Judge a log by a contract; `given` are mappings TARGET=SOURCE. Errors: InputError with file and line."""
    judged_by = load_contract(contract)
    return judge(judged_by, facts_of_log(read_log(Path(path)), judged_by, parse_mappings(given)))


def parse_mappings(given: Sequence[str]) -> dict[str, str]:
    """Give {"train_loss": "loss"} for ["train_loss=loss"]. Errors: InputError for another form, or a target twice."""
    found: dict[str, str] = {}
    for text in given:
        target, equals, source = (part.strip() for part in text.partition("="))
        if not (target and equals and source):
            raise InputError(f"--map {text!r}: expected a column of ours and one of the log, as in train_loss=loss")
        if target in found:
            raise InputError(f"--map {text!r}: {target} is mapped already, to {found[target]}")
        found[target] = source
    return found


# -- the formats -----------------------------------------------------------------------------------------------------


def read_log(path: Path) -> Log:
    """Read a log by its suffix. Errors: InputError for a file or a row that cannot be read, with its line."""
    if path.suffix not in READERS:
        raise InputError(f"{path}: is none of {', '.join(READERS)}; known are JSONL, trainer_state.json, metrics.csv")
    read, names = READERS[path.suffix]
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return Log(str(path), list(read(file, str(path))), names)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text: {error.reason} at byte {error.start}") from error


def _jsonl(file: TextIO, name: str) -> Iterator[tuple[str, Row]]:
    for number, line in enumerate(file, 1):
        if line.strip():
            yield (place := f"{name}:{number}"), _row(_json(line, place), place)


def _trainer_state(file: TextIO, name: str) -> Iterator[tuple[str, Row]]:
    state = _row(_json(file.read(), name), name)
    history = state.get("log_history")
    if not isinstance(history, list):
        raise InputError(
            f"{name}: has no list log_history, as trainer_state.json of Hugging Face has; for rows: .jsonl"
        )
    for number, row in enumerate(history):
        yield (place := f"{name}: log_history.{number}"), _row(row, place)


def _csv(file: TextIO, name: str) -> Iterator[tuple[str, Row]]:
    lines = csv.reader(file, strict=True)
    try:
        header = next(lines, [])
        for cells in lines:
            place = f"{name}:{lines.line_num}"
            if len(cells) != len(header):
                raise InputError(f"{place}: has {len(cells)} cells, and the first line names {len(header)} columns")
            yield place, {key: _cell(cell) for key, cell in zip(header, cells, strict=True) if cell}
    except csv.Error as error:
        raise InputError(f"{name}:{lines.line_num}: is no row of a CSV file: {error}") from error


def _moments(file: TextIO, name: str) -> Iterator[tuple[str, Row]]:
    """Read a CSV file to which each logger adds rows of its own; those of a step that tell different things are one."""
    place, whole = "", dict[str, Any]()
    for now, row in _csv(file, name):
        same = "step" in row and row["step"] == whole.get("step")
        if same and all(whole.get(key, value) == value for key, value in row.items()):
            whole |= row
            continue
        if whole:
            yield place, whole
        place, whole = now, dict(row)
    if whole:
        yield place, whole


READERS: Final[Mapping[str, tuple[Callable[[TextIO, str], Iterator[tuple[str, Row]]], Names]]] = {
    ".jsonl": (_jsonl, {}),
    ".json": (_trainer_state, HUGGING_FACE),
    ".csv": (_moments, LIGHTNING),
}


def _json(text: str, place: str) -> Any:
    """Read JSON as Python writes it: NaN and Infinity are numbers there."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: is not valid JSON: {error}") from error


def _row(value: Any, place: str) -> Row:
    if not isinstance(value, dict):
        raise InputError(f"{place}: expected an object of names and values, found {_kind(value)}")
    try:
        return without_siblings(value)
    except InputError as error:
        raise InputError(f"{place}: {error}") from error


def _cell(text: str) -> Any:
    if WHOLE.fullmatch(text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text


# -- the facts -------------------------------------------------------------------------------------------------------


def facts_of_log(log: Log, contract: Contract, given: Mapping[str, str]) -> Facts:
    """Give the tables of a log. `given` is our column -> the log's, before what its tool is known to call it.

    Errors: InputError for a mapping that names no column of the contract or of the log, a value of a wrong kind, and a
    log without any column that the contract knows.
    """
    known = list(
        dict.fromkeys((*OF_STEPS, *(metric.name for metric in contract.entry.metrics if metric.table == "steps")))
    )
    _check_mappings(log, known, given)
    sources = _sources(log, known, given)
    steps = [name for name in sources if name != VALUE]
    if not {*sources} - {"step"}:
        raise InputError(
            f"{log.name}: has no column that {contract.id} knows ({', '.join(known)}); it has: {', '.join(log.keys)}; "
            "tell which is which with --map, as in --map train_loss=loss"
        )
    facts = {"steps": _steps(log, steps, sources), "validations": _validations(log, sources)}
    return {name: table for name, table in facts.items() if table.num_rows}


def _check_mappings(log: Log, known: Iterable[str], given: Mapping[str, str]) -> None:
    for target, source in given.items():
        for name, there, whose in ((target, [*known, VALUE], "the contract"), (source, log.keys, log.name)):
            if name not in there:
                nearest = difflib.get_close_matches(name, there, n=1, cutoff=0.5)
                advice = f"did you mean {nearest[0]!r}? " if nearest else ""
                raise InputError(
                    f"--map {target}={source}: {name!r} is no column of {whose}; {advice}known: {', '.join(there)}"
                )


def _sources(log: Log, known: Iterable[str], given: Mapping[str, str]) -> dict[str, str]:
    """Give our column -> the log's, for those that the log has."""
    there = set(log.keys)
    found: dict[str, str] = {}
    for name in (*known, VALUE):
        tried = (given[name],) if name in given else log.names.get(name, () if name == VALUE else (name,))
        source = next((key for key in tried if key in there), None)
        if source is not None:
            found[name] = source
    return found


def _steps(log: Log, names: Sequence[str], sources: Mapping[str, str]) -> pa.Table:
    """Make a table of the rows that hold more of a step than its number."""
    measured = [sources[name] for name in names if name != "step"]
    rows = [(place, row) for place, row in log.rows if any(key in row for key in measured)]
    return pa.table({name: _column(rows, name, sources[name]) for name in names})


def _validations(log: Log, sources: Mapping[str, str]) -> pa.Table:
    if VALUE not in sources:
        return pa.table({})
    rows = [(place, row) for place, row in log.rows if sources[VALUE] in row]
    values = _column(rows, VALUE, sources[VALUE])
    step = {"step": _column(rows, "step", sources["step"])} if "step" in sources else {}
    earlier = in_order([math.nan if value is None else value for value in values.to_pylist()])
    return pa.table({**step, VALUE: values, **earlier})


def _column(rows: Iterable[tuple[str, Row]], name: str, source: str) -> pa.Array:
    kinds, kind = ((int,), pa.int64()) if name == "step" else ((float, int), pa.float64())
    values = []
    for place, row in rows:
        value = row.get(source)
        if value is not None:
            if type(value) not in kinds or (type(value) is int and abs(value) > MOST):
                raise InputError(f"{place}: {source}: {_unlike(value, kinds)}")
            value = kinds[0](value)
        values.append(value)
    return pa.array(values, kind)


def _unlike(value: Any, kinds: Sequence[type]) -> str:
    """Say why a value is no number of `kinds`, or none of 64 bits."""
    if type(value) in kinds:
        return f"expected a number of 64 bits, found one of {value.bit_length()}"
    return f"expected {'a number' if float in kinds else 'a whole number'}, found {_kind(value)} {value!r}"


def _kind(value: Any) -> str:
    kinds = {type(None): "null", list: "a list", dict: "an object", str: "text", bool: "a truth value"}
    return kinds.get(type(value), "the number")
