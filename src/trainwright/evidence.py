"""The evidence of a run: its statement, sealed at its end, and the check of it by whoever has the run's files."""

import errno
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from trainwright import __version__
from trainwright.contract.judge import Verdict
from trainwright.contract.run import failing, judge_run
from trainwright.errors import InputError
from trainwright.files import sha256_of_file
from trainwright.jsonfile import read_json
from trainwright.manifest import MANIFEST, RETIRED, decode_manifest, saved_in
from trainwright.metrics import best_of, read_events, read_validations
from trainwright.outcome import Outcome
from trainwright.rundir import EVIDENCE, Result, RunDirectory
from trainwright.seals import seal_problems, write_seal
from trainwright.signing import public_key, signing_key
from trainwright.statement import (
    PREDICATE_TYPE,
    STATEMENT_TYPE,
    Predicate,
    Statement,
    encode,
    hashes_of,
    irregular_records,
    plain,
    read_statement,
    statement_of,
    value_differences,
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
    """Check a run directory: every hash, the seal, then what the files come to when judged again.

    `public` is the key that has to have signed it; without, a signature is checked by the user's own (`public_key`).
    Gives one line a problem, which begins with the file or the gate; none when the evidence holds. The run's own
    contract is judged in this process: for one from outside, call `outside.problems_of_evidence`. Errors: InputError
    when `public` is no key.
    """
    run = RunDirectory(path)
    if not run.evidence.is_file():
        return [f"{EVIDENCE}: is missing: the run is not sealed"]
    text = run.evidence.read_bytes()
    again, problems = _content_problems(run)
    signed = public is not None
    return [*seal_problems(run.path, text, again, public=public or public_key(), signed=signed), *problems]


def _content_problems(run: RunDirectory) -> tuple[bytes | None, list[str]]:
    """Give evidence.json as the files make it again, where they can, and what they deny of the sealed one."""
    try:
        sealed = read_statement(run.evidence)
    except InputError as error:
        return None, [str(error)]
    hashes = list(_hash_problems(run, sealed))
    irregular = irregular_records(run)
    if irregular:
        return None, [*hashes, *(f"{name}: is no regular file" for name in irregular)]
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
    verdicts = judge_run(run)
    if sealed.predicate.environment.get("trainwright") != __version__:
        # A reason is words, and another version may choose others: those of result.json stand.
        told = {verdict["gate"]: verdict["reason"] for verdict in result.verdicts}
        verdicts = [msgspec.structs.replace(v, reason=told.get(v.gate, v.reason)) for v in verdicts]
    again = statement_of(run, verdicts)
    return again, [
        *_verdict_problems("", sealed.predicate.verdicts, again.predicate.verdicts),
        *_verdict_problems("", sealed.predicate.not_decided, again.predicate.not_decided),
        *_verdict_problems(f"{run.result.name}: ", result.verdicts, plain(verdicts)),
        *_outcome_problems(run, result, failing(run, verdicts)),
        *_weight_problems(run),
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
            yield from (f"{where}{line}" for line in value_differences(gate, ours[gate], theirs[gate]))


def _outcome_problems(run: RunDirectory, result: Result, gates: Sequence[str]) -> Iterator[str]:
    """Hold what result.json says of the end against the rows that tell it."""
    known = {outcome.label: outcome for outcome in Outcome}
    if result.outcome not in known:
        yield f"{run.result.name}: {result.outcome!r} is no outcome of a run"
    elif result.exit_code != known[result.outcome].exit_code:
        yield f"{run.result.name}: exit code {result.exit_code} is not that of {result.outcome}"
    if result.outcome == Outcome.DONE.label:
        yield from (f"{gate}: does not hold, and {run.result.name} says {result.outcome}" for gate in gates)
    ended, why = _end_of(run, result)
    for name, value in ended.items():
        yield from value_differences(f"{run.result.name}: {name}", getattr(result, name), value)
    if not result.why.startswith(why):
        yield f"{run.result.name}: why: {result.why!r} is recorded, the events say {why!r}"


def _end_of(run: RunDirectory, result: Result) -> tuple[dict[str, Any], str]:
    """Give what the rows tell of the end by name, and how its reason begins. A record of checks has no rows."""
    attempts, best = run.attempts(), best_of(run.read_validations())
    ended: dict[str, Any] = {
        "attempts": attempts[-1].number if attempts else 0,
        "parent": attempts[0].start().parent if attempts else None,
        "best_validation": best.value if best else None,
    }
    finished = next((event for event in reversed(run.read_events()) if event.kind == "finished"), None)
    if finished is None:
        return ended, ""
    outcome, judged = str(finished.detail.get("outcome")), (Outcome.DONE.label, Outcome.GATE_FAILED.label)
    if outcome != Outcome.DONE.label or result.outcome not in judged:  # of a good end the gates decide which
        ended["outcome"] = outcome
    return {**ended, "step": finished.step}, str(finished.detail.get("why"))


def _weight_problems(run: RunDirectory) -> Iterator[str]:
    """Hold the files of each checkpoint that is kept against its manifest, which is sealed."""
    for checkpoint in saved_in(run.checkpoints, of=MANIFEST):
        folder = run.checkpoints / checkpoint.name
        if (folder / RETIRED).exists():
            continue
        manifest = decode_manifest((folder / MANIFEST).read_bytes(), f"checkpoints/{checkpoint.name}/{MANIFEST}")
        for name, record in manifest.files.items():
            file, told = folder / name, f"checkpoints/{checkpoint.name}/{name}"
            if not file.is_file():
                yield f"{told}: is missing"
            elif sha256_of_file(file) != record.sha256:
                yield f"{told}: was changed: its SHA-256 is not the one in its manifest"


def _rest_problems(where: str, recorded: Predicate, again: Predicate) -> Iterator[str]:
    for name in ("run", "ended", "result", "contract", "statistics", "environment"):
        ours, theirs = getattr(recorded, name), plain(getattr(again, name))
        yield from (f"{where}: {line}" for line in value_differences(name, ours, theirs))


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
