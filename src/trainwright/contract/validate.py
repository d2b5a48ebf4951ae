"""The linter of contracts: every problem of a file, with its line, its gate and how much it weighs.

A contract with errors cannot be relied on: it is refused, or a gate of it cannot fail. Warnings are advice.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from trainwright import yamlfile
from trainwright.contract import schema
from trainwright.contract.diff import problems_against, read_entry, shipped_before
from trainwright.contract.expressions import connect
from trainwright.contract.gatechecks import Severity, problems_of_gate
from trainwright.contract.links import evidence_problems
from trainwright.contract.load import file_of, read_contract
from trainwright.errors import InputError
from trainwright.yamlfile import Document, KeyPath

PLACED: Final = re.compile(r"(?:(\d+):)? ?(.*)", re.DOTALL)
IN_GATE: Final = re.compile(r"(?:unknown key '|key ')?gates\.(\d+)\b")
NAMES: Final = {"gate": ("gates", "id"), "metric": ("metrics", "name")}  # what stands once, and where
TYPED: Final = "statuses are computed, never typed; take it out"
GATE_ID: Final = re.compile(r"GATE-[A-Z]+-[A-Z0-9]+")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong in a contract file. `gate` is None for what stands outside the gates."""

    severity: Severity
    line: int
    gate: str | None
    text: str


def validate(name_or_path: str | Path, against: str | Path | None = None) -> list[Problem]:
    """Give every problem of a shipped contract or a file, by line; one that cannot be read is its line 1.

    A change that is too large for the version is one: since `against`, or since the shipped contract of the same id.
    Errors: InputError when `against` cannot be read.
    """
    try:
        document = yamlfile.parse(*read_contract(name_or_path))
    except InputError as error:
        return [Problem("error", *_placed(str(error), str(name_or_path)))]
    older = None if against is None else read_entry(against)
    problems = [*_problems_within(document), *_too_large_changes(document, older)]
    problems += _evidence_links(document, file_of(name_or_path).parent)
    return sorted(problems, key=lambda problem: problem.line)


def validate_text(text: str, name: str) -> list[Problem]:
    """Give every problem of a contract's text, by line; `name` stands for the file."""
    try:
        document = yamlfile.parse(text, name)
    except InputError as error:
        return [Problem("error", *_placed(str(error), name))]
    return sorted(_problems_within(document), key=lambda problem: problem.line)


def _problems_within(document: Document) -> Iterator[Problem]:
    """Tell what is wrong in a contract by itself."""
    yield from _typed_statuses(document)
    yield from _shape(_untyped(document))
    yield from _disagreements(document)
    metrics = _entries(document, "metrics")
    declared = schema.declared((str(metric.get("table", "steps")), str(metric.get("name", ""))) for metric in metrics)
    with connect() as connection:
        for index, gate in enumerate(_entries(document, "gates")):
            for severity, key, what in problems_of_gate(connection, gate, declared):
                yield _at(document, severity, ("gates", index, *_keys(key)), what)
    yield from _stale_names(document)


def _too_large_changes(document: Document, older: schema.ContractFile | None) -> Iterator[Problem]:
    """Tell what the version does not allow to change; of a file that is not well-formed, enough was told."""
    try:
        entry = yamlfile.validate(schema.ContractFile, document)
    except InputError:
        return
    before = older or shipped_before(entry)
    for path, what in problems_against(before, entry) if before else ():
        yield _at(document, "error", path, what)


def _placed(message: str, name: str, document: Document | None = None) -> tuple[int, str | None, str]:
    """Take file, line and gate off a message of the loader."""
    found = PLACED.fullmatch(message.removeprefix(f"{name}:"))
    assert found, "the pattern matches any text"
    inside = IN_GATE.match(found[2])
    return int(found[1] or 1), _gate_id(document, int(inside[1])) if document and inside else None, found[2]


def _at(document: Document, severity: Severity, path: KeyPath, text: str) -> Problem:
    line, _, _ = _placed(f"{document.where(path)}: ", document.name)
    gate = _gate_id(document, path[1]) if path[0] == "gates" and len(path) > 1 else None
    return Problem(severity, line, gate, text)


def _keys(key: str) -> KeyPath:
    return tuple(int(part) if part.isdigit() else part for part in key.split("."))


def _entries(document: Document, section: str) -> list[dict[str, Any]]:
    """Give the entries of a section, each in its place; one that is no mapping is empty here."""
    entries = document.data.get(section)
    return [entry if isinstance(entry, dict) else {} for entry in entries] if isinstance(entries, list) else []


def _texts(document: Document, section: str, key: str) -> list[str]:
    return [str(entry.get(key, "")) for entry in _entries(document, section)]


def _gate_id(document: Document, index: Any) -> str | None:
    gates = _entries(document, "gates")
    name = gates[index].get("id") if index < len(gates) else None
    return name if isinstance(name, str) else None


def _typed_statuses(document: Document) -> Iterator[Problem]:
    if "status" in document.data:
        yield _at(document, "error", ("status",), TYPED)
    for index, gate in enumerate(_entries(document, "gates")):
        if "status" in gate:
            yield _at(document, "error", ("gates", index, "status"), TYPED)


def _untyped(document: Document) -> Document:
    """Give the document without typed statuses, of which a clearer message was given."""
    document = replace(document, data={key: value for key, value in document.data.items() if key != "status"})
    gates = document.data.get("gates")
    if not isinstance(gates, list):
        return document
    plain = [{k: v for k, v in gate.items() if k != "status"} if isinstance(gate, dict) else gate for gate in gates]
    return replace(document, data={**document.data, "gates": plain})


def _shape(document: Document) -> Iterator[Problem]:
    try:
        yamlfile.validate(schema.ContractShape, document)
    except InputError as error:
        for line in str(error).splitlines():
            yield Problem("error", *_placed(line, document.name, document))


def _disagreements(document: Document) -> Iterator[Problem]:
    version = document.data.get("version")
    versions = _texts(document, "changelog", "version")
    known = all(map(schema.is_version, [str(version), *versions]))
    names = {what: [*filter(None, _texts(document, *at))] for what, at in NAMES.items()}
    since = dict(zip(_texts(document, "metrics", "name"), _texts(document, "metrics", "since"), strict=True))
    since = {name: first for name, first in since.items() if schema.is_version(first)}
    if not known:  # the shape says so; names still stand once
        version, versions, since = "", [], {}
    for about, text in schema.disagreements(str(version), versions, since, names):
        yield _at(document, "error", _place_of(document, about), text)


def _place_of(document: Document, about: str) -> KeyPath:
    """Give the key of a version, the changelog, or the last entry of a name."""
    for section, key in NAMES.values():
        places = [index for index, name in enumerate(_texts(document, section, key)) if name == about]
        if places:
            return section, places[-1], key
    return (about,)


def _stale_names(document: Document) -> Iterator[Problem]:
    """Warn of gates that the newest changes name and that are not there, unless it was removed."""
    changes = next(iter(_entries(document, "changelog")), {}).get("changes")
    for index, change in enumerate(changes if isinstance(changes, list) else []):
        for name in sorted({*GATE_ID.findall(str(change))} - {*_texts(document, "gates", "id")}):
            if "remove" not in str(change):
                path = ("changelog", 0, "changes", index)
                yield _at(document, "warning", path, f"changelog names {name}, which is no gate of this contract")


def _evidence_links(document: Document, folder: Path) -> Iterator[Problem]:
    """Tell evidence that is not what the contract links to."""
    for severity, path, what in evidence_problems(document.data, folder):
        yield _at(document, severity, path, what)
