"""The seal of a run: evidence.json, an in-toto Statement (v1) over the run's records, and evidence.sha256 over that.

Subjects are the closed set of records (`SEALED`) with their SHA-256. The predicate says what they come to, and is made
from those files and nothing else: whoever has them makes it again, and holds it against the one that was sealed.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from trainwright.contract.judge import Verdict
from trainwright.contract.rules import Contract
from trainwright.contract.run import contract_of, failing, judge_run, kinds_of
from trainwright.errors import InputError
from trainwright.files import sha256_of_bytes, sha256_of_file, write_atomically
from trainwright.metrics import StepMetrics, read_events, read_steps, read_validations, with_siblings
from trainwright.outcome import Outcome
from trainwright.rundir import Result, RunDirectory, read_json

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "urn:trainwright:run-evidence:1"
SEALED: Final = (
    *("run.yaml", "contract.yaml", "environment.json"),
    *(
        f"attempts/*/{name}"
        for name in ("start.json", "steps.jsonl", "validations.jsonl", "events.jsonl", "audits.jsonl")
    ),
    *("attempts/*/devices.csv", "checks.jsonl"),
    *("checkpoints/*/manifest.json", "checkpoints/*/retired.json"),
    *("steps.jsonl", "validations.jsonl", "events.jsonl", "result.json"),
)
OF_ENVIRONMENT: Final = (
    *("git", "trainwright", "python", "packages", "host", "threads", "cpu_capability", "device", "device_name"),
    *("cuda", "driver", "absent", "seed", "model_type", "parameters", "config_sha256", "hashes", "command"),
)
OF_RESULT: Final = ("outcome", "exit_code", "why", "step", "attempts", "parent")
OF_VERDICT: Final = ("gate", "result", "figures", "bound", "unit", "headroom_percent", "rows", "reason")
SHA256_LINE: Final = re.compile(rb"[0-9a-f]{64}  evidence\.json\n")
CLOSE: Final = 1e-9  # relative; an engine may add up floats in another order


class Subject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    digest: dict[str, str]


class Predicate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the records come to. `not_decided` names the gates that one run cannot decide, with the reason."""

    run: str
    ended: str | None
    result: dict[str, Any]
    contract: dict[str, str] | None
    verdicts: list[dict[str, Any]]
    not_decided: list[dict[str, Any]]
    statistics: dict[str, dict[str, Any]]
    environment: dict[str, Any]


class Statement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: str = msgspec.field(name="_type", default=STATEMENT_TYPE)
    subject: list[Subject]
    predicate_type: str = msgspec.field(name="predicateType", default=PREDICATE_TYPE)
    predicate: Predicate


def seal(run: RunDirectory, verdicts: Sequence[Verdict] | None = None) -> Path:
    """Write evidence.json and evidence.sha256 of a run that has its result; an earlier seal is replaced.

    `verdicts` are those just judged from the run's files; without them they are judged here. Errors: OSError when a
    file cannot be written; InputError and DataError for a missing or broken record.
    """
    text = _encode(_statement(run, judge_run(run) if verdicts is None else verdicts))
    write_atomically(run.evidence, text)
    write_atomically(run.evidence_sha256, _sha256_line(text))
    return run.evidence


def verify(path: Path) -> list[str]:
    """Check a run directory, or its evidence.json: every hash, then what the files come to when judged again.

    Gives one line a problem, which begins with the file or the gate; none when the evidence holds. Errors: InputError
    when `path` is neither.
    """
    run = _run_of(path)
    if not run.evidence.is_file():
        return [f"{run.evidence.name}: is missing: the run is not sealed"]
    text = run.evidence.read_bytes()
    try:
        sealed = msgspec.json.decode(text, type=Statement)
    except (msgspec.MsgspecError, ValueError) as error:
        return [*_seal_problems(run, text, None), f"{run.evidence.name}: is no evidence of a run: {error}"]
    hashes = list(_hash_problems(run, sealed))
    try:
        again, lies = _judged_again(run, sealed)
    except Exception as error:  # noqa: BLE001  a record with another byte in it may break its reader in any way
        told = f"{type(error).__name__}: {error}"
        return [*_seal_problems(run, text, None), *hashes, f"the run cannot be judged again: {told}"]
    return [*_seal_problems(run, text, _encode(again)), *hashes, *lies]


def _run_of(path: Path) -> RunDirectory:
    run = RunDirectory(path if path.is_dir() else path.parent)
    if path.is_dir() or (path.is_file() and path.name == run.evidence.name):
        return run
    raise InputError(f"{path}: is neither a run directory nor {run.evidence.name} in one")


# -- the statement ---------------------------------------------------------------------------------------------------


def _statement(run: RunDirectory, verdicts: Sequence[Verdict]) -> Statement:
    subjects = [Subject(name, {"sha256": value}) for name, value in _hashes(run).items()]
    return Statement(subject=subjects, predicate=_predicate(run, verdicts))


def _hashes(run: RunDirectory) -> dict[str, str]:
    files = sorted(file for pattern in SEALED for file in run.path.glob(pattern) if file.is_file())
    return {file.relative_to(run.path).as_posix(): sha256_of_file(file) for file in files}


def _predicate(run: RunDirectory, verdicts: Sequence[Verdict]) -> Predicate:
    result, environment = read_json(run.result), read_json(run.environment)
    contract, events, decided = contract_of(run), run.read_events(), kinds_of(run)
    steps, firsts = run.read_steps(), {attempt.start().step for attempt in run.attempts()}
    return Predicate(
        run=result["run"],
        ended=events[-1].time if events else None,
        result={name: result[name] for name in OF_RESULT},
        contract=None if contract is None else _named(contract, run.contract),
        verdicts=[
            with_siblings({name: getattr(v, name) for name in OF_VERDICT}) for v in verdicts if v.kind in decided
        ],
        not_decided=[
            {"gate": verdict.gate, "kind": verdict.kind, "reason": verdict.reason}
            for verdict in verdicts
            if verdict.kind not in decided
        ],
        statistics=with_siblings({"wall_ms": _wall_ms(steps, firsts), "train_loss": _train_loss(steps)}),
        environment={name: environment[name] for name in OF_ENVIRONMENT if name in environment},
    )


def _named(contract: Contract, file: Path) -> dict[str, str]:
    return {"id": contract.id, "version": contract.version, "sha256": sha256_of_file(file)}


def _wall_ms(rows: Sequence[StepMetrics], firsts: set[int]) -> dict[str, Any]:
    """Give figures of the steady steps in ms; the first of each attempt, which warms up, stands apart."""
    measured = [row for row in rows if row.wall_ms_measured]
    steady = [row.wall_ms for row in measured if row.step not in firsts]
    return {
        "rows": len(steady),
        "median": float(np.median(steady)) if steady else None,
        "p95": float(np.percentile(steady, 95)) if steady else None,
        "minimum": min(steady, default=None),
        "maximum": max(steady, default=None),
        "first_steps": {str(row.step): row.wall_ms for row in measured if row.step in firsts},
        "not_measured": len(rows) - len(measured),
    }


def _train_loss(rows: Sequence[StepMetrics]) -> dict[str, Any]:
    """Give figures of the loss; the minimum is that of the finite values."""
    losses = [row.train_loss for row in rows]
    finite = [loss for loss in losses if math.isfinite(loss)]
    return {
        "rows": len(losses),
        "first": losses[0] if losses else None,
        "last": losses[-1] if losses else None,
        "minimum": min(finite, default=None),
        "difference": losses[-1] - losses[0] if losses else None,
        "not_finite": len(losses) - len(finite),
    }


def _encode(statement: Statement) -> bytes:
    return msgspec.json.format(msgspec.json.encode(statement), indent=2) + b"\n"


def _sha256_line(text: bytes) -> bytes:
    """Give what `sha256sum evidence.json` prints."""
    return f"{sha256_of_bytes(text)}  evidence.json\n".encode()


# -- the check -------------------------------------------------------------------------------------------------------


def _seal_problems(run: RunDirectory, text: bytes, again: bytes | None) -> Iterator[str]:
    """Hold evidence.json against evidence.sha256; where they differ, one that can be made again was not changed."""
    file = run.evidence_sha256
    if not file.is_file():
        yield f"{file.name}: is missing"
    elif (line := file.read_bytes()) != _sha256_line(text):
        if not SHA256_LINE.fullmatch(line):
            yield f"{file.name}: is not a line as sha256sum writes it"
        elif text == again:
            yield f"{file.name}: is not the SHA-256 of {run.evidence.name}"
        else:
            yield f"{run.evidence.name}: its SHA-256 is not the one in {file.name}"


def _hash_problems(run: RunDirectory, sealed: Statement) -> Iterator[str]:
    if (sealed.type, sealed.predicate_type) != (STATEMENT_TYPE, PREDICATE_TYPE):
        yield f"{run.evidence.name}: is of another type: {sealed.type}, {sealed.predicate_type}"
    listed, there = {subject.name: subject.digest for subject in sealed.subject}, _hashes(run)
    if len(listed) < len(sealed.subject):
        yield f"{run.evidence.name}: lists a file twice"
    for name in sorted(listed.keys() | there.keys()):
        if name not in there:
            yield f"{name}: is missing, or no record of a run"
        elif name not in listed:
            yield f"{name}: was added after the run was sealed"
        elif listed[name] != {"sha256": there[name]}:
            yield f"{name}: was changed: its SHA-256 is {there[name]}, sealed {listed[name].get('sha256')}"


def _judged_again(run: RunDirectory, sealed: Statement) -> tuple[Statement, list[str]]:
    """Make the statement again from the files, and say where these deny the sealed one, or each other."""
    result: Result = read_json(run.result, Result)
    told = {verdict["gate"]: verdict["reason"] for verdict in result.verdicts}
    # A reason is words, and a later version may choose others: those of result.json stand.
    verdicts = [msgspec.structs.replace(v, reason=told.get(v.gate, v.reason)) for v in judge_run(run)]
    again = _statement(run, verdicts)
    return again, [
        *_verdict_problems("", sealed.predicate.verdicts, again.predicate.verdicts),
        *_verdict_problems("", sealed.predicate.not_decided, again.predicate.not_decided),
        *_verdict_problems(f"{run.result.name}: ", result.verdicts, _plain(verdicts)),
        *_outcome_problems(result, failing(run, verdicts)),
        *_rest_problems(run.evidence.name, sealed.predicate, again.predicate),
        *_join_problems(run),
    ]


def _verdict_problems(where: str, recorded: Sequence[Any], judged: Sequence[Any]) -> Iterator[str]:
    ours, theirs = ({str(verdict["gate"]): verdict for verdict in verdicts} for verdicts in (recorded, judged))
    if len(ours) < len(recorded):
        yield f"{where}a gate is recorded twice: {', '.join(str(verdict['gate']) for verdict in recorded)}"
    for gate in dict.fromkeys((*ours, *theirs)):
        if gate not in theirs or gate not in ours:
            yield f"{where}{gate}: {'is not recorded' if gate in theirs else 'is no gate that the contract decides so'}"
        else:
            yield from (f"{where}{line}" for line in _differences(gate, ours[gate], theirs[gate]))


def _outcome_problems(result: Result, gates: Sequence[str]) -> Iterator[str]:
    if result.exit_code != Outcome.of(result.outcome).exit_code:
        yield f"result.json: exit code {result.exit_code} is not that of {result.outcome}"
    if result.outcome == Outcome.DONE.label:
        yield from (f"{gate}: does not hold, and result.json says {result.outcome}" for gate in gates)


def _rest_problems(where: str, recorded: Predicate, again: Predicate) -> Iterator[str]:
    for name in ("run", "ended", "result", "contract", "statistics", "environment"):
        ours, theirs = getattr(recorded, name), _plain(getattr(again, name))
        yield from (f"{where}: {line}" for line in _differences(name, ours, theirs))


def _join_problems(run: RunDirectory) -> Iterator[str]:
    """Hold the joined files against the attempts that they were joined from."""
    if run.checks.exists():
        return
    pairs = (
        (run.steps, read_steps(run.steps), run.read_steps()),
        (run.validations, read_validations(run.validations), run.read_validations()),
        (run.events, read_events(run.events), run.read_events()),
    )
    for file, joined, rows in pairs:
        if [row.encode() for row in joined] != [row.encode() for row in rows]:
            yield f"{file.name}: is not what its attempts come to"


def _differences(name: str, recorded: Any, again: Any) -> Iterator[str]:
    if isinstance(recorded, dict) and isinstance(again, dict):
        for key in dict.fromkeys((*recorded, *again)):
            yield from _differences(f"{name} {key}", recorded.get(key), again.get(key))
    elif not _same(recorded, again):
        yield f"{name}: {json.dumps(recorded)} is recorded, the files say {json.dumps(again)}"


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=CLOSE)
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _plain(value: Any) -> Any:
    """Give a value as it stands after its way through JSON."""
    return msgspec.json.decode(msgspec.json.encode(value))
