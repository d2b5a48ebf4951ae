"""A model version out of a run: judged again, numbered by the registry, its files copied where no run can touch them.

The registry gives the number first, with every hash; then the files go to the store, and once each was verified there
the version is ready. Until then it is pending, and `complete` goes on with it whatever was cut.
"""

import getpass
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from trainwright import versionfiles
from trainwright.checkpoints.checkpoints import Checkpoints
from trainwright.checkpoints.open import open_store
from trainwright.config import RunConfig
from trainwright.contract.judge import holds
from trainwright.data.shards import TOKENIZER
from trainwright.errors import DataError, InputError, StoreError
from trainwright.exports import chosen, tokenizer_file
from trainwright.files import sha256_of_file
from trainwright.manifest import MANIFEST, Checkpoint, FileRecord, Manifest
from trainwright.metrics import with_siblings
from trainwright.mirror import key_of_run
from trainwright.outcome import Outcome
from trainwright.outside import problems_of_evidence
from trainwright.redaction import redacted
from trainwright.registry.base import ContractRecord, Facts, Lineage, Metrics, ModelVersion, Registry
from trainwright.registry.versions import Bump, Version
from trainwright.rundir import Result, RunDirectory
from trainwright.seals import seals_in
from trainwright.statement import read_statement
from trainwright.versionfiles import Shelf, Source

WEIGHTS: Final = "model.safetensors"
FEW: Final = 3  # problems that an error tells
COMPLETE: Final = "trainwright checkpoints sync"
REGISTERED, PENDING = "registered", "registration_pending"  # in after.jsonl


@dataclass(frozen=True, slots=True)
class Registration:
    """What came of a registration. `why` says what keeps the version pending; None once it is ready."""

    version: ModelVersion
    is_new: bool
    why: str | None = None


def register(
    run: RunDirectory,
    registry: Registry,
    shelf: Shelf,
    name: str,
    wanted: Bump | Version,
    *,
    who: str,
    allow_failing: bool = False,
    choice: str = "best",
) -> Registration:
    """Make the run's chosen checkpoint a version of the model `name`; a second call gives the same version.

    A store that fails leaves the version pending. Errors, all before anything is stored: InputError for a run that may
    not be registered, or a number that is taken; StoreError, DataError for a file that is missing or not what it was;
    RegistryError.
    """
    result = _result_of(run)
    _check_outcome(run, result, allow_failing=allow_failing)
    _check_evidence(run)
    facts = _facts(run, result, choice)
    registered = registry.register(name, facts, wanted, who=who)
    done = complete(registry, shelf, registered.version, run, who=who)
    return replace(done, is_new=registered.is_new)


def complete(registry: Registry, shelf: Shelf, version: ModelVersion, run: RunDirectory, *, who: str) -> Registration:
    """Bring the files of a pending version to the store and make it ready; else the reason why it stays pending.

    They are taken from `run` and from its copy in the same store, whichever is there. Errors: RegistryError.
    """
    if version.status == "ready":
        return Registration(version, is_new=False)
    try:
        versionfiles.put(shelf.store, version, _sources(run, version))
    except (StoreError, DataError) as error:
        why = redacted(str(error))
        _note(run, PENDING, version, why=why)
        return Registration(version, is_new=False, why=why)
    ready = _made_ready(registry, shelf, version, who=who)
    _note(run, REGISTERED, ready, artifact_url=ready.artifact_url, passing=ready.passing)
    return Registration(ready, is_new=False)


def _made_ready(registry: Registry, shelf: Shelf, version: ModelVersion, *, who: str) -> ModelVersion:
    """Errors: InputError for a version that was deleted meanwhile; its files, just put, are removed again."""
    try:
        return registry.complete(version.name, version.number, shelf.url_of(version), who=who)
    except InputError:
        now = registry.get(version.name, version.number)
        if now.status == "deleted":
            versionfiles.remove(shelf.store, now)
        raise


def person() -> str:
    """Give who asks, for the audit: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without a user of this number
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"


# -- what may be registered ------------------------------------------------------------------------------------------


def _result_of(run: RunDirectory) -> Result:
    if not run.config.is_file():
        raise InputError(f"{run.path}: is no run of a model; only what was trained is registered")
    result = run.read_result()
    if result is None:
        raise InputError(f"{run.id}: has not ended; go on with it first: trainwright resume {run.id}")
    return result


def _check_outcome(run: RunDirectory, result: Result, *, allow_failing: bool) -> None:
    outcome = Outcome.of(result.outcome)
    if outcome not in {Outcome.DONE, Outcome.GATE_FAILED}:
        raise InputError(f"{run.id}: ended as {outcome.label} ({result.why}); only a run that finished is registered")
    asked = [verdict for verdict in result.verdicts if verdict["ship_blocking"] and verdict["kind"] == "run"]
    blocking = [v["gate"] for v in asked if not holds(v["result"], optional=v["optional"])]
    if blocking:
        raise InputError(f"{run.id}: {', '.join(blocking)} forbids to ship it and does not hold; no flag changes that")
    if outcome is Outcome.GATE_FAILED and not allow_failing:
        raise InputError(
            f"{run.id}: {result.why}; --allow-failing registers it all the same, and marks the version for ever"
        )


def _check_evidence(run: RunDirectory) -> None:
    """Errors: InputError unless every file is the sealed one, and the verdicts are what the files come to again."""
    problems = problems_of_evidence(run)
    if problems:
        more = f"; and {len(problems) - FEW} more" if len(problems) > FEW else ""
        raise InputError(
            f"{run.id}: its evidence does not hold: {'; '.join(problems[:FEW])}{more}; see all of it with: "
            f"trainwright evidence verify {run.id}"
        )


# -- what is known of it ---------------------------------------------------------------------------------------------


def _facts(run: RunDirectory, result: Result, choice: str) -> Facts:
    checkpoints = Checkpoints(open_store(run.checkpoints))
    checkpoint = chosen(run, checkpoints, choice)
    manifest = checkpoints.manifest(checkpoint)
    contract = read_statement(run.evidence).predicate.contract
    return Facts(
        lineage=_lineage(run, checkpoint, manifest),
        hyperparameters=RunConfig.load(run.config).to_dict(),
        metrics=_metrics(run, checkpoint),
        files=_records(run, checkpoint, manifest),
        contract=ContractRecord(**contract) if contract else None,
        verdicts=result.verdicts,
        evidence_sha256=sha256_of_file(run.evidence),
        passing=result.outcome == Outcome.DONE.label,
    )


def _lineage(run: RunDirectory, checkpoint: Checkpoint, manifest: Manifest) -> Lineage:
    first = run.attempts()[0].start()
    return Lineage(
        run=run.id,
        checkpoint=checkpoint.name,
        step=checkpoint.step,
        parent_run=first.parent,
        parent_checkpoint=first.checkpoint if first.parent else None,
        init=first.init or {},
        hashes=manifest.stamp.hashes,
        config_sha256=manifest.stamp.config_sha256,
    )


def _metrics(run: RunDirectory, checkpoint: Checkpoint) -> Metrics:
    """Give what the validation at the checkpoint measured; nothing where there was none."""
    row = next((row for row in reversed(run.read_validations()) if row.checkpoint == checkpoint.name), None)
    if row is None:
        return {}
    about = {"metric": row.metric, "n": row.n, "standard_error": row.standard_error, "step": row.step}
    return with_siblings({**row.measures, row.metric: row.value, **about})


def _records(run: RunDirectory, checkpoint: Checkpoint, manifest: Manifest) -> dict[str, FileRecord]:
    """Give name → size and hash of each file of the version. Errors: StoreError, DataError for one that is missing."""
    weights = manifest.files.get(WEIGHTS)
    if weights is None:
        raise StoreError(f"{run.path}: {checkpoint.name} holds no {WEIGHTS}; it has no weights to register")
    names = ("run.yaml", "environment.json", "result.json", "evidence.json", *seals_in(run.path))
    own = [*names, *(["contract.yaml"] if run.contract.exists() else [])]
    paths = {name: run.path / name for name in own} | {MANIFEST: run.checkpoints / checkpoint.name / MANIFEST}
    if "tokenizer" in manifest.stamp.hashes:
        paths[TOKENIZER] = tokenizer_file(run, manifest)
    records = {name: FileRecord(path.stat().st_size, sha256_of_file(path)) for name, path in paths.items()}
    return {WEIGHTS: weights, **records}


# -- its files -------------------------------------------------------------------------------------------------------


def _sources(run: RunDirectory, version: ModelVersion) -> dict[str, Source]:
    """Give where each file of a version is taken from. Errors: DataError for a tokenizer that is gone or another."""
    folder = f"checkpoints/{version.facts.lineage.checkpoint}"
    places = {name: f"{folder}/{name}" if name in {WEIGHTS, MANIFEST} else name for name in version.facts.files}
    sources = {name: Source(run.path / place, f"{key_of_run(run.id)}/{place}") for name, place in places.items()}
    if TOKENIZER in sources:
        sources[TOKENIZER] = Source(_tokenizer_of(run, version))
    return sources


def _tokenizer_of(run: RunDirectory, version: ModelVersion) -> Path:
    if not run.config.is_file():
        raise DataError(f"{run.path}: is not there, and its tokenizer is in no store; give its --runs-dir")
    checkpoint = Checkpoint.named(version.facts.lineage.checkpoint)
    if checkpoint is None:
        raise DataError(f"{version.reference}: {version.facts.lineage.checkpoint!r} is no name of a checkpoint")
    return tokenizer_file(run, Checkpoints(open_store(run.checkpoints)).manifest(checkpoint))


def _note(run: RunDirectory, kind: str, version: ModelVersion, **detail: Any) -> None:
    if run.config.is_file():
        run.add_after(kind, model=version.name, version=str(version.number), **detail)


def told(done: Sequence[Registration]) -> list[str]:
    """Say of each in a line what it came to."""
    return [
        f"{one.version.reference} is {'ready' if one.why is None else 'pending'}"
        + ("" if one.version.passing else " (its gates do not hold)")
        + (f": {one.why}; complete it with: {COMPLETE}" if one.why else "")
        for one in done
    ]
