"""Sealed evidence attached to a contract: a folder beside it and an entry in it, for each gate that the run passes."""

import datetime as dt
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trainwright.contract.edits import with_evidence
from trainwright.contract.facts import load_facts
from trainwright.contract.links import sha256_of_folder, symbolic_part
from trainwright.contract.load import parse_contract
from trainwright.contract.rules import Contract, Gate
from trainwright.contract.run import contract_of
from trainwright.contract.schema import EvidenceEntry, gate_sha256
from trainwright.errors import InputError, StoreError
from trainwright.evidence import verify
from trainwright.evidencefolders import content_problem, write_folder
from trainwright.files import make_directory, write_atomically
from trainwright.rundir import ENVELOPE, RunDirectory
from trainwright.seals import seals_in
from trainwright.signing import key_id, public_key
from trainwright.statement import Predicate, read_statement


@dataclass(frozen=True, slots=True)
class Attachment:
    """What came of attaching a run: the entries that were added; why gates were refused; what denies the evidence."""

    entries: Sequence[EvidenceEntry] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    problems: Sequence[str] = ()

    def document(self) -> dict[str, Any]:
        """Give it for JSON."""
        entries = [entry.model_dump(mode="json") for entry in self.entries]
        return {"entries": entries, "refused": self.refused, "problems": self.problems}

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> "Attachment":
        entries = [EvidenceEntry.model_validate(entry) for entry in document["entries"]]
        return cls(entries, document["refused"], document["problems"])


def attach(
    run: RunDirectory,
    file: Path,
    *,
    gates: Collection[str] = (),
    public: Path | None = None,
    today: dt.date | None = None,
) -> Attachment:
    """Copy the evidence of a sealed run beside the contract in `file`, and link it there, for each gate that it passes.

    `gates` are those to take, all of them without; `public` is the key that has to have signed the run. Nothing is
    written when the evidence does not hold, when no gate takes it, or when the contract cannot be edited. The key is
    copied along as evidence.pub, for the bytes to be checked by later; as a key that lies beside what it signed, it
    proves nothing about who signed. Errors: InputError for a contract or a gate that is none; StoreError when a file
    cannot be written.
    """
    text = _text_of(file)
    contract = parse_contract(text, str(file))
    chosen = _chosen(contract, gates)
    problems = verify(run.path, public=public)
    if problems:
        return Attachment(problems=problems)
    with TemporaryDirectory() as staging:
        entries, refused = _staged(run, contract, chosen, Path(staging), public or public_key())
        if entries:
            named = ", ".join(entry.gate for entry in entries)
            change = f"evidence of run {entries[0].run} for {named}"
            edited = with_evidence(text, str(file), entries, change, today or dt.datetime.now(dt.UTC).date())
            _write(Path(staging), file, entries, edited)
    return Attachment(entries, refused)


def _text_of(file: Path) -> str:
    try:
        return file.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: the contract cannot be read: {error}") from error


def _chosen(contract: Contract, names: Collection[str]) -> list[Gate]:
    known = [gate.id for gate in contract.gates]
    for name in names:
        if name not in known:
            raise InputError(f"{name}: is no gate of {contract.name}; its gates: {', '.join(known)}")
    return [gate for gate in contract.gates if not names or gate.id in names]


def _staged(
    run: RunDirectory, contract: Contract, gates: Sequence[Gate], staging: Path, public: Path | None
) -> tuple[list[EvidenceEntry], dict[str, str]]:
    """Make the folder of each gate that takes the run's evidence; say why the others do not."""
    statement, facts = read_statement(run.evidence), load_facts(run)
    signed_by = key_id(public) if public and ENVELOPE in seals_in(run.path) else None
    judged, linked = contract_of(run), {(entry.gate, entry.run) for entry in contract.entry.evidence}
    under = {gate.id: gate_sha256(gate.entry) for gate in judged.gates} if judged else {}
    decided = {
        verdict["gate"]: verdict for verdict in (*statement.predicate.not_decided, *statement.predicate.verdicts)
    }
    entries, refused = [], {}
    for gate in gates:
        entry = _entry(statement.predicate, gate, signed_by)
        reason = _refusal(entry, under.get(gate.id), decided.get(gate.id))
        if (gate.id, entry.run) in linked:
            reason = f"run {entry.run} is attached to it already; to attach it anew, take its entry out of evidence"
        if reason is None:
            write_folder(staging / entry.folder, run, gate, facts, public)
            reason = content_problem(staging / entry.folder, entry, gate, contract.id)
        if reason is None:
            entries.append(entry.model_copy(update={"sha256": sha256_of_folder(staging / entry.folder)}))
        else:
            refused[gate.id] = reason
    return entries, refused


def _entry(said: Predicate, gate: Gate, signed_by: str | None) -> EvidenceEntry:
    """Give the entry of a gate, the hash of its folder left open."""
    return EvidenceEntry(
        gate=gate.id,
        run=said.run,
        date=said.day,
        device=said.device,
        folder=f"evidence/{gate.id}/{said.day:%Y%m%d}-{said.run}",
        sha256="0" * 64,
        gate_sha256=gate_sha256(gate.entry),
        signed_by=signed_by,
    )


def _refusal(entry: EvidenceEntry, judged_under: str | None, verdict: Mapping[str, Any] | None) -> str | None:
    """Say why the run is no evidence for a gate; `judged_under` is the hash of the gate of that id in the run."""
    if verdict is None or judged_under is None:
        return "the run was judged under no such gate"
    if judged_under != entry.gate_sha256:
        return "it is not the gate that the run was judged under: its definition differs"
    result = verdict.get("result", "no_evidence")
    return None if result == "pass" else f"{result.replace('_', ' ')}: {verdict['reason']}"


def _write(staging: Path, file: Path, entries: Sequence[EvidenceEntry], edited: str) -> None:
    """Write the folders, then the contract, each file at once; a folder that no contract links to is replaced."""
    for entry in entries:
        symbolic = symbolic_part(entry.folder, file.parent)
        if symbolic:
            raise InputError(f"{file.parent / symbolic}: is a symbolic link; evidence is put into real folders alone")
    try:
        for entry in entries:
            target = file.parent / entry.folder
            shutil.rmtree(target, ignore_errors=True)
            make_directory(target)
            for source in sorted((staging / entry.folder).iterdir()):
                write_atomically(target / source.name, source.read_bytes())
        write_atomically(file, edited.encode())
    except OSError as error:
        raise StoreError(f"{error.filename or file}: evidence cannot be written: {error.strerror}") from error
