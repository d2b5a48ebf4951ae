"""The status of each gate of a contract, computed from the contract's file and the evidence beside it.

proposed                   its fixtures do not prove the rule
partial_algorithm_level    they do, and there is no evidence of a real run
active_with_live_evidence  at least one entry of evidence stands
stale                      there are entries, and none stands
An entry stands when its folder and the gate have the hashes that it names, the seal in the folder holds, and the rows
there, judged again, pass with the figures that were sealed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from trainwright.contract.expressions import connect
from trainwright.contract.gatechecks import problems_of_gate
from trainwright.contract.judge import figures_told
from trainwright.contract.links import link_problem
from trainwright.contract.load import SUFFIX, file_of, parse_contract, read_contract, shipped_contracts
from trainwright.contract.rules import Gate
from trainwright.contract.schema import Declared, EvidenceEntry, gate_sha256
from trainwright.errors import InputError
from trainwright.evidencefolders import content_problem
from trainwright.rundir import EVIDENCE
from trainwright.statement import read_statement

Status: TypeAlias = Literal["proposed", "partial_algorithm_level", "active_with_live_evidence", "stale"]
STATUSES: Final[tuple[Status, ...]] = get_args(Status)
ACTIVE: Final[Status] = "active_with_live_evidence"
ADVICE: Final = "no sealed evidence of a real run: trainwright evidence attach RUN --to FILE"


@dataclass(frozen=True, slots=True)
class GateStatus:
    """Where a gate stands, by which evidence, and what is missing for the next status.

    `evidence` is the newest entry that stands, else the newest; `figure` what was measured there, with its device,
    and empty where none stands.
    """

    gate: str
    claim: str
    kind: str
    status: Status
    evidence: EvidenceEntry | None = None
    figure: str = ""
    blocks: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Give it for JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**values, "evidence": self.evidence and self.evidence.model_dump(mode="json")}

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> "GateStatus":
        evidence = document["evidence"] and EvidenceEntry.model_validate(document["evidence"])
        return cls(**{**document, "evidence": evidence, "blocks": tuple(document["blocks"])})


def statuses_of(file: Path) -> list[GateStatus]:
    """Compute the status of every gate of a contract, in its order. Errors: InputError when the file is none."""
    contract = parse_contract(*read_contract(file))
    newest_first = sorted(contract.entry.evidence, key=lambda entry: entry.date)[::-1]
    with connect() as connection:
        return [
            _status(
                gate,
                [*_unproven(connection, gate, contract.entry.declared)],
                [entry for entry in newest_first if entry.gate == gate.id],
                contract.id,
                file.parent,
            )
            for gate in contract.gates
        ]


def _unproven(connection: Any, gate: Gate, declared: Declared) -> Iterator[str]:
    """Tell what keeps the fixtures from proving the rule."""
    for severity, _, text in problems_of_gate(connection, gate.entry.model_dump(exclude_unset=True), declared):
        if severity == "error":
            yield text


def _status(
    gate: Gate, unproven: Sequence[str], entries: Sequence[EvidenceEntry], contract: str, folder: Path
) -> GateStatus:
    told = gate.id, gate.entry.claim, gate.entry.kind
    problems = [_why_stale(entry, gate, contract, folder) for entry in entries]
    standing = next((entry for entry, problem in zip(entries, problems, strict=True) if problem is None), None)
    shown = standing or next(iter(entries), None)
    figure = _figure(standing, gate, folder) if standing else ""
    if unproven:
        return GateStatus(*told, "proposed", shown, figure, tuple(unproven))
    if standing:
        return GateStatus(*told, ACTIVE, standing, figure)
    if shown:
        return GateStatus(*told, "stale", shown, figure, (f"stale: {problems[0]}", *_missing(gate)))
    return GateStatus(*told, "partial_algorithm_level", blocks=tuple(_missing(gate)))


def _why_stale(entry: EvidenceEntry, gate: Gate, contract: str, folder: Path) -> str | None:
    problem = link_problem(entry, folder)
    if problem is None and entry.gate_sha256 != gate_sha256(gate.entry):
        problem = f"the gate was changed since evidence of run {entry.run} was attached"
    return problem or content_problem(folder / entry.folder, entry, gate, contract)


def _missing(gate: Gate) -> Iterator[str]:
    yield ADVICE
    device = gate.entry.applies.get("device")
    if device:
        yield f"evidence of a run on {device} is missing"


def _figure(standing: EvidenceEntry, gate: Gate, folder: Path) -> str:
    """Give the figures of an entry that stands, as sealed, with the device and who signed."""
    verdict = read_statement(folder / standing.folder / EVIDENCE).predicate.verdict_of(gate.id) or {}
    figures = {name: value for name, value in verdict.get("figures", {}).items() if isinstance(value, int | float)}
    signed = f", signed by {standing.signed_by[:8]}" if standing.signed_by else ""
    return f"{figures_told(figures, gate.entry.unit)} ({standing.device}{signed})"


@dataclass(frozen=True, slots=True)
class Tally:
    """How many gates have each status; `live_percent` of them have live evidence, 0 where there is no gate."""

    gates: int
    by_status: Mapping[Status, int]
    live_percent: float


def tally(statuses: Sequence[GateStatus]) -> Tally:
    by_status = {status: sum(one.status == status for one in statuses) for status in STATUSES}
    return Tally(len(statuses), by_status, 100 * by_status[ACTIVE] / max(1, len(statuses)))


def contract_files(places: Sequence[str]) -> list[Path]:
    """Give the contract files that `places` name: each a file, a shipped name, or a folder, with its `contracts`.

    No place at all stands for the shipped contracts. Errors: InputError for a place that has none.
    """
    return list(dict.fromkeys(file for place in places or shipped_contracts() for file in _files_at(place)))


def _files_at(place: str) -> list[Path]:
    folder = Path(place)
    if not folder.is_dir():
        return [file_of(place)]
    found = [file for inside in (folder, folder / "contracts") for file in sorted(inside.glob(f"*{SUFFIX}"))]
    if not found:
        raise InputError(f"{place}: no contract lies there: no *{SUFFIX}, and none in {folder / 'contracts'}")
    return found
