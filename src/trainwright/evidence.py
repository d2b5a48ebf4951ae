"""The evidence of a run: its statement, sealed at its end, and the check of it by whoever has the run's files."""

import errno
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from trainwright.contract.judge import Verdict
from trainwright.contract.run import failing, judge_run
from trainwright.errors import InputError
from trainwright.metrics import read_events, read_validations
from trainwright.outcome import Outcome
from trainwright.rundir import Result, RunDirectory, read_json
from trainwright.seals import ENVELOPE, EVIDENCE, seal_problems, write_seal
from trainwright.signing import public_key, signing_key
from trainwright.statement import (
    PREDICATE_TYPE,
    STATEMENT_TYPE,
    Predicate,
    Statement,
    differences,
    encode,
    hashes_of,
    plain,
    statement_of,
)


def seal(run: RunDirectory, verdicts: Sequence[Verdict] | None = None, *, key: Path | None = None) -> Path:
    """Write evidence.json and its seal for a run that has its result; an earlier seal is replaced.

    `verdicts` are those just judged from the run's files; without them they are judged here. The seal is signed by
    `key`, or by the user's own (`signing_key`) where there is one. Errors: OSError when a file cannot be written or
    the key cannot be used; InputError and DataError for a missing or broken record.
    """
    text = encode(statement_of(run, judge_run(run) if verdicts is None else verdicts))
    try:
        write_seal(run.path, text, key or signing_key())
    except InputError as error:  # as a disk that is full: the run has not ended, and a resume seals it
        raise OSError(errno.EACCES, str(error)) from error
    return run.evidence


def verify(path: Path, *, public: Path | None = None) -> list[str]:
    """Check a run directory, or its evidence: every hash, the seal, then what the files come to when judged again.

    `public` is the key that has to have signed it; without, a signature is checked by the user's own (`public_key`).
    Gives one line a problem, which begins with the file or the gate; none when the evidence holds. Errors: InputError
    when `path` is neither, or `public` no key.
    """
    run = run_of(path)
    if not run.evidence.is_file():
        return [f"{EVIDENCE}: is missing: the run is not sealed"]
    text = run.evidence.read_bytes()
    again, problems = _content_problems(run, text)
    signed = public is not None
    return [*seal_problems(run.path, text, again, public=public or public_key(), signed=signed), *problems]


def run_of(path: Path) -> RunDirectory:
    """Give the run of its directory, or of its evidence.json or .dsse.json. Errors: InputError for any other path."""
    run = RunDirectory(path if path.is_dir() else path.parent)
    if path.is_dir() or (path.is_file() and path.name in {EVIDENCE, ENVELOPE}):
        return run
    raise InputError(f"{path}: is neither a run directory nor {EVIDENCE} or {ENVELOPE} in one")


def _content_problems(run: RunDirectory, text: bytes) -> tuple[bytes | None, list[str]]:
    """Give evidence.json as the files make it again, where they can, and what they deny of the sealed one."""
    try:
        sealed = msgspec.json.decode(text, type=Statement)
    except (msgspec.MsgspecError, ValueError) as error:
        return None, [f"{EVIDENCE}: is no evidence of a run: {error}"]
    hashes = list(_hash_problems(run, sealed))
    try:
        again, lies = _judged_again(run, sealed)
    except Exception as error:  # noqa: BLE001  a record with another byte in it may break its reader in any way
        told = f"{type(error).__name__}: {error}"
        return None, [*hashes, f"the run cannot be judged again: {told}"]
    return encode(again), [*hashes, *lies]


def _hash_problems(run: RunDirectory, sealed: Statement) -> Iterator[str]:
    if (sealed.type, sealed.predicate_type) != (STATEMENT_TYPE, PREDICATE_TYPE):
        yield f"{run.evidence.name}: is of another type: {sealed.type}, {sealed.predicate_type}"
    listed, there = {subject.name: subject.digest for subject in sealed.subject}, hashes_of(run)
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
    again = statement_of(run, verdicts)
    return again, [
        *_verdict_problems("", sealed.predicate.verdicts, again.predicate.verdicts),
        *_verdict_problems("", sealed.predicate.not_decided, again.predicate.not_decided),
        *_verdict_problems(f"{run.result.name}: ", result.verdicts, plain(verdicts)),
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
            yield from (f"{where}{line}" for line in differences(gate, ours[gate], theirs[gate]))


def _outcome_problems(result: Result, gates: Sequence[str]) -> Iterator[str]:
    if result.exit_code != Outcome.of(result.outcome).exit_code:
        yield f"result.json: exit code {result.exit_code} is not that of {result.outcome}"
    if result.outcome == Outcome.DONE.label:
        yield from (f"{gate}: does not hold, and result.json says {result.outcome}" for gate in gates)


def _rest_problems(where: str, recorded: Predicate, again: Predicate) -> Iterator[str]:
    for name in ("run", "ended", "result", "contract", "statistics", "environment"):
        ours, theirs = getattr(recorded, name), plain(getattr(again, name))
        yield from (f"{where}: {line}" for line in differences(name, ours, theirs))


def _join_problems(run: RunDirectory) -> Iterator[str]:
    """Hold the joined files against the attempts that they were joined from."""
    if run.checks.exists():
        return
    if not run.steps_are_joined():
        yield f"{run.steps.name}: is not what its attempts come to"
    pairs = (
        (run.validations, read_validations(run.validations), run.read_validations()),
        (run.events, read_events(run.events), run.read_events()),
    )
    for file, joined, rows in pairs:
        if [row.encode() for row in joined] != [row.encode() for row in rows]:
            yield f"{file.name}: is not what its attempts come to"
