"""Evidence folders: what of a sealed run a gate is judged from again, and nothing else.

<folder of the contract>/evidence/<gate>/<yyyymmdd>-<run id>/
    evidence.json, and evidence.sha256 or evidence.dsse.json with evidence.pub    as sealed, byte for byte
    <table>.jsonl       of each table that the gate reads: the rows and columns that it reads
    devices.csv         as recorded, where the run has samples of a device; devices-<n>.csv of several attempts
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import duckdb
import msgspec
import pyarrow as pa

from trainwright.contract.expressions import connect
from trainwright.contract.judge import SETTINGS, judge_gate
from trainwright.contract.readings import Facts, registered
from trainwright.contract.rules import Gate
from trainwright.errors import TrainwrightError
from trainwright.metrics import encode_line, read_checks
from trainwright.rundir import RunDirectory
from trainwright.seals import ENVELOPE, EVIDENCE, seal_problems, seals_in
from trainwright.statement import Statement, differences, plain, recorded

PUBLIC_KEY: Final = "evidence.pub"
ROWS_SUFFIX: Final = ".jsonl"
COMPARED: Final = ("result", "figures", "rows")


def write_folder(folder: Path, run: RunDirectory, gate: Gate, facts: Facts, public: Path | None) -> None:
    """Make the folder of a gate that the run passes; `public` is the key that a signature was checked with."""
    folder.mkdir(parents=True)
    for name in (EVIDENCE, *seals_in(run.path)):
        shutil.copyfile(run.path / name, folder / name)
    if public and ENVELOPE in seals_in(run.path):
        shutil.copyfile(public, folder / PUBLIC_KEY)
    for name, rows in _rows_read(gate, facts).items():
        (folder / f"{name}{ROWS_SUFFIX}").write_bytes(b"".join(map(encode_line, rows)))
    sampled = [attempt for attempt in run.attempts() if attempt.devices.is_file()]
    for attempt in sampled:
        name = "devices.csv" if len(sampled) == 1 else f"devices-{attempt.number}.csv"
        shutil.copyfile(attempt.devices, folder / name)


def _rows_read(gate: Gate, facts: Facts) -> dict[str, list[dict[str, Any]]]:
    """Give the rows and columns that a gate reads of each table."""
    asked = _facts_asked(gate, facts)
    tables = dict.fromkeys([*(figure.rows.table for figure in gate.figures), *asked])
    with connect() as connection, registered(connection, facts):
        return {name: _part(connection, gate, name, facts[name], asked.get(name, set())) for name in tables}


def _facts_asked(gate: Gate, facts: Facts) -> dict[str, set[str]]:
    """Give table → columns that decide whether the gate applies: of each fact, the first table that has it."""
    asked: dict[str, set[str]] = {}
    for name in gate.entry.applies:
        fact = name[4:] if name.startswith(("min_", "max_")) else name
        for column in (fact, f"{fact}_unknown"):
            table = next((table for table in SETTINGS if table in facts and column in facts[table].column_names), None)
            if table:
                asked.setdefault(table, set()).add(column)
    return asked


def _part(connection: Any, gate: Gate, name: str, table: pa.Table, asked: set[str]) -> list[dict[str, Any]]:
    figures = [figure for figure in gate.figures if figure.rows.table == name]
    conditions = list(dict.fromkeys(figure.rows.condition for figure in figures))
    read = (expression.columns for expression in (*conditions, *(figure.value for figure in figures)) if expression)
    columns = asked.union(*read)
    names = [column for column in table.column_names if column in columns] or table.column_names[:1]
    selected = " OR ".join(f"({condition.sql})" for condition in conditions if condition)
    where = f" WHERE {selected}" if selected and None not in conditions else ""
    listed = ", ".join(f't."{column}"' for column in names)
    found = connection.execute(f'SELECT {listed} FROM "{name}" AS t{where}').fetchall()  # noqa: S608  accepted SQL
    return [dict(zip(names, row, strict=True)) for row in found]


def content_problem(folder: Path, run: str, gate: Gate) -> str | None:
    """Say why what lies in a folder is no evidence of `run` for the gate as it is now; None when it is."""
    try:
        return next(_content_problems(folder, run, gate), None)
    except (TrainwrightError, msgspec.MsgspecError, duckdb.Error, pa.ArrowException, OSError, ValueError) as error:
        return f"{folder.name}: cannot be judged again: {error}"


def _content_problems(folder: Path, run: str, gate: Gate) -> Iterator[str]:
    text, public = (folder / EVIDENCE).read_bytes(), folder / PUBLIC_KEY
    yield from seal_problems(folder, text, public=public if public.is_file() else None)
    said = msgspec.json.decode(text, type=Statement).predicate
    verdict = next((verdict for verdict in said.verdicts if verdict["gate"] == gate.id), None)
    if said.run != run or verdict is None:
        yield f"{EVIDENCE}: is not that of run {run}, or has no verdict of {gate.id}"
        return
    with connect() as connection:
        facts = _facts_in(folder)
        with registered(connection, facts):
            again = plain(recorded(judge_gate(connection, gate, facts)))
    if again["result"] != "pass":
        yield f"its rows give {again['result']}: {again['reason']}"
    for name in COMPARED:
        yield from differences(f"{gate.id} {name}", verdict.get(name), again[name])


def _facts_in(folder: Path) -> Facts:
    files = sorted(folder.glob(f"*{ROWS_SUFFIX}"))
    return {file.name.removesuffix(ROWS_SUFFIX): pa.Table.from_pylist(read_checks(file)) for file in files}
