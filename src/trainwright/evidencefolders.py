"""Evidence folders: what of a sealed run a gate is judged from again, and nothing else.

<folder of the contract>/evidence/<gate>/<yyyymmdd>-<run id>/
    evidence.json, and evidence.sha256 or evidence.dsse.json with evidence.pub    as sealed, byte for byte
    <table>.jsonl       of each table that the gate reads: the rows and columns that it reads
    devices.csv         as recorded, where the run has samples of a device; devices-<n>.csv of several attempts
"""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import duckdb
import msgspec
import pyarrow as pa

from trainwright.contract.expressions import connect
from trainwright.contract.judge import SETTINGS, judge_gate
from trainwright.contract.readings import Facts, registered
from trainwright.contract.rules import Gate
from trainwright.contract.schema import EvidenceEntry
from trainwright.errors import TrainwrightError
from trainwright.files import sha256_of_file
from trainwright.metrics import encode_line, read_checks
from trainwright.rundir import ENVELOPE, EVIDENCE, RunDirectory
from trainwright.seals import seal_problems, seals_in
from trainwright.signing import key_id
from trainwright.statement import (
    PREDICATE_TYPE,
    STATEMENT_TYPE,
    Statement,
    plain,
    read_statement,
    value_differences,
    verdict_record,
)

PUBLIC_KEY: Final = "evidence.pub"
ROWS_SUFFIX: Final = ".jsonl"
COMPARED: Final = ("result", "figures", "rows")
UNREADABLE: Final = (msgspec.MsgspecError, duckdb.Error, pa.ArrowException, OSError, ValueError, RecursionError)


def write_folder(folder: Path, run: RunDirectory, gate: Gate, facts: Facts, public: Path | None) -> None:
    """Make the folder of a gate that the run passes; `public` is the key that a signature was checked with.

    Errors: OSError when a file cannot be written, FileExistsError among them when the folder is there already.
    """
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


def content_problem(folder: Path, entry: EvidenceEntry, gate: Gate, contract: str) -> str | None:
    """Say why what lies in a folder is not what `entry` says of the gate as it is now; None when it is.

    `contract` is the id of the contract that the entry stands in.
    """
    try:
        return next(_content_problems(folder, entry, gate, contract), None)
    except (*UNREADABLE, TrainwrightError) as error:
        return f"{folder.name}: cannot be judged again: {error}"


def _content_problems(folder: Path, entry: EvidenceEntry, gate: Gate, contract: str) -> Iterator[str]:
    public = folder / PUBLIC_KEY
    signer = key_id(public) if public.is_file() else None
    yield from seal_problems(folder, (folder / EVIDENCE).read_bytes(), public=public if signer else None)
    if signer != entry.signed_by:
        yield f"{PUBLIC_KEY}: is the key {signer}, and the contract says that {entry.signed_by} signed"
    statement, facts = read_statement(folder / EVIDENCE), _facts_in(folder)
    yield from _identity_problems(folder, statement, entry, contract)
    yield from _record_problems(folder, statement, facts)
    yield from _verdict_problems(statement.predicate.verdict_of(gate.id), gate, facts)


def _identity_problems(folder: Path, statement: Statement, entry: EvidenceEntry, contract: str) -> Iterator[str]:
    """Hold what the contract says of the evidence against what the statement says of itself."""
    said = statement.predicate
    if (statement.type, statement.predicate_type) != (STATEMENT_TYPE, PREDICATE_TYPE):
        yield f"{EVIDENCE}: is of another type: {statement.type}, {statement.predicate_type}"
    told = {"run": entry.run, "contract": contract, "device": entry.device, "date": str(entry.date)}
    found = {"run": said.run, "contract": (said.contract or {}).get("id"), "device": said.device, "date": str(said.day)}
    for name, value in told.items():
        if found[name] != value:
            yield f"{EVIDENCE}: its {name} is {found[name]}, and the contract says {value}"
    if folder.name != f"{said.day:%Y%m%d}-{said.run}":
        yield f"{folder.name}: is not the folder of run {said.run}"


def _record_problems(folder: Path, statement: Statement, facts: Facts) -> Iterator[str]:
    """Hold the other files against the records that were sealed, as far as these can be told from them."""
    sealed = {subject.name: subject.digest.get("sha256") for subject in statement.subject}
    missing = {"contract.yaml", "environment.json", "result.json"} - sealed.keys()
    if missing:
        yield f"{EVIDENCE}: seals no {', '.join(sorted(missing))}"
    samples = {digest for name, digest in sealed.items() if name.endswith("/devices.csv")}
    for file in folder.glob("devices*.csv"):
        if sha256_of_file(file) not in samples:
            yield f"{file.name}: is not as it was sealed"
    device = statement.predicate.environment.get("device")
    environment = facts.get("environment")
    if environment is not None and "device" in environment.column_names:
        for value in environment["device"].to_pylist():
            if value != device:
                yield f"environment{ROWS_SUFFIX}: its device is {value}, sealed is {device}"


def _verdict_problems(sealed: Mapping[str, Any] | None, gate: Gate, facts: Facts) -> Iterator[str]:
    if sealed is None:
        yield f"{EVIDENCE}: has no verdict of {gate.id}"
        return
    with connect() as connection, registered(connection, facts):
        again = plain(verdict_record(judge_gate(connection, gate, facts)))
    if again["result"] != "pass":
        yield f"its rows give {again['result']}: {again['reason']}"
    for name in COMPARED:
        yield from value_differences(f"{gate.id} {name}", sealed.get(name), again[name])


def _facts_in(folder: Path) -> Facts:
    files = sorted(folder.glob(f"*{ROWS_SUFFIX}"))
    return {file.name.removesuffix(ROWS_SUFFIX): pa.Table.from_pylist(read_checks(file)) for file in files}
