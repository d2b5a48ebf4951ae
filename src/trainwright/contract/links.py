"""Evidence that a contract links to: folders beside its file, each held by one hash over the files in it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainwright import yamlfile
from trainwright.contract.gatechecks import Severity
from trainwright.contract.schema import EvidenceEntry, Gate, gate_sha256
from trainwright.errors import InputError
from trainwright.files import sha256_of_file, sha256_of_names
from trainwright.yamlfile import Document, KeyPath, ModelT


def sha256_of_folder(folder: Path) -> str:
    """One hash over name and content of every file in `folder`, of which each is a regular one."""
    return sha256_of_names((path.name, sha256_of_file(path)) for path in folder.iterdir())


def link_problem(entry: EvidenceEntry, contract_folder: Path) -> str | None:
    """Say why the folder is not the one that the entry links to; None when it is.

    Only a folder of plain files below real folders is one: no symbolic link is followed, no pipe is opened.
    """
    folder = contract_folder / entry.folder
    symbolic = symbolic_part(entry.folder, contract_folder)
    if symbolic:
        return f"{entry.folder}: {symbolic} is a symbolic link; put the folder itself there"
    if not folder.is_dir():
        return f"{entry.folder}: is no folder beside the contract"
    irregular = next((path.name for path in sorted(folder.iterdir()) if path.is_symlink() or not path.is_file()), None)
    if irregular:
        return f"{entry.folder}: {irregular} is no regular file; evidence is plain files, side by side"
    found = sha256_of_folder(folder)
    if found != entry.sha256:
        return f"{entry.folder}: was changed: its SHA-256 is {found}, attached {entry.sha256}"
    return None


def symbolic_part(folder: str, contract_folder: Path) -> str | None:
    """Give the first part of an entry's folder that is a symbolic link; None when none is."""
    *above, _ = Path(folder).parents
    return next((str(part) for part in (*above[::-1], Path(folder)) if (contract_folder / part).is_symlink()), None)


def evidence_problems(data: Mapping[str, Any], folder: Path) -> Iterator[tuple[Severity, KeyPath, str]]:
    """Tell the entries of a contract's data that link to nothing, or to something else than they did.

    `folder` is that of the contract's file. What is not well-formed is passed over: the shape tells it.
    """
    gates = {gate.id: gate for _, gate in _entries(Gate, data.get("gates"))}
    named = {gate.get("id") for gate in data.get("gates") or () if isinstance(gate, dict)}
    for index, entry in _entries(EvidenceEntry, data.get("evidence")):
        broken = link_problem(entry, folder)
        if entry.gate not in named:
            yield "error", ("evidence", index, "gate"), f"{entry.gate} is no gate of this contract"
        if broken:
            yield "error", ("evidence", index, "folder"), broken
        if entry.gate in gates and gate_sha256(gates[entry.gate]) != entry.gate_sha256:
            told = f"{entry.gate} was changed since this evidence was attached, which is stale; attach it anew"
            yield "warning", ("evidence", index, "gate_sha256"), told


def _entries(kind: type[ModelT], values: Any) -> Iterator[tuple[int, ModelT]]:
    for index, value in enumerate(values if isinstance(values, list) else ()):
        try:
            yield index, yamlfile.validate(kind, Document("", value if isinstance(value, dict) else {}))
        except InputError:
            continue
