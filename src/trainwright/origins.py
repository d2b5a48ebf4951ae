"""What an attempt begins from: a checkpoint of its own run or of its parent, or the weights of an earlier run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from trainwright import yamlfile
from trainwright.checkpoints.checkpoints import Checkpoints, Found
from trainwright.checkpoints.open import open_store
from trainwright.config import SET_BY_MODE, RunConfig
from trainwright.errors import DamagedCheckpointError, InputError, StoreError
from trainwright.jsonfile import read_json
from trainwright.manifest import Checkpoint, Manifest
from trainwright.metrics import best_of
from trainwright.rundir import RunDirectory, Start
from trainwright.state import State
from trainwright.trainable import Trainable

Rejected: TypeAlias = Sequence[tuple[Checkpoint, str]]


@dataclass(frozen=True, slots=True)
class Origin:
    """The checkpoint that an attempt begins from, and which newer ones were found damaged on the way to it."""

    run: RunDirectory
    checkpoint: Checkpoint
    manifest: Manifest
    state: State
    rejected: Rejected = ()

    @property
    def facts(self) -> dict[str, Any]:
        """Give the data and the conditions under which the checkpoint was made."""
        return {**self.manifest.stamp.hashes, **self.manifest.stamp.conditions}


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of an earlier run that a new one began with, and which damaged checkpoints were passed over."""

    run: RunDirectory
    checkpoint: Checkpoint
    sha256: str
    rejected: Rejected

    def record(self) -> dict[str, str]:
        return {"run": str(self.run.path), "checkpoint": self.checkpoint.name, "weights_sha256": self.sha256}


def newest(run: RunDirectory) -> Found:
    """Load the newest valid checkpoint of `run`; nothing is written to it.

    Errors: StoreError when there are checkpoints and every one is damaged: to begin anew would void the rows so far.
    """
    checkpoints = Checkpoints(open_store(run.checkpoints))
    found = checkpoints.newest_valid(run.limits())
    if found.loaded is None and {checkpoint for checkpoint, _ in found.rejected} & set(checkpoints.committed()):
        reasons = "; ".join(f"{checkpoint.name}: {reason}" for checkpoint, reason in found.rejected)
        raise StoreError(f"{run.path}: every checkpoint is damaged ({reasons}); put a file back, or start a new run")
    return found


def origin_in(run: RunDirectory, found: Found) -> Origin | None:
    return Origin(run, *found.loaded, found.rejected) if found.loaded else None


def of_parent(run: RunDirectory) -> Origin:
    """Give the newest checkpoint of the run that a new one goes on from. Errors: StoreError when there is none."""
    origin = origin_in(run, newest(run))
    if origin is None:
        raise StoreError(f"{run.path}: this run has no checkpoint; there is nothing to go on from")
    return origin


def child_config(parent: RunDirectory, overrides: Sequence[str]) -> RunConfig:
    """Give the parent's configuration with `key=value` overrides; what its mode had set is open to be set anew."""
    document = yamlfile.load(parent.config)
    explicit = read_json(parent.environment).get("explicit", {})
    for key in SET_BY_MODE:
        section, _, name = key.partition(".")
        if not explicit.get(name, True):
            document.data[section][name] = None
    return RunConfig.from_document(yamlfile.override(document, overrides))


def first_origin(run: RunDirectory) -> Origin | None:
    """Give the parent's checkpoint that the first attempt of `run` began from, where there is one."""
    start = _first_start(run)
    if start is None or start.parent is None or start.checkpoint is None:
        return None
    parent = RunDirectory.find(start.parent_directory or start.parent, run.path.parent)
    checkpoint = Checkpoint.named(start.checkpoint)
    if checkpoint is None:
        raise InputError(f"{run.path}: its first start.json names {start.checkpoint!r}, which is no checkpoint")
    return Origin(parent, checkpoint, *Checkpoints(open_store(parent.checkpoints)).load(checkpoint))


def _first_start(run: RunDirectory) -> Start | None:
    return next((attempt.start() for attempt in run.attempts()), None)


def weights_again(trainable: Trainable, run: RunDirectory) -> Weights | None:
    """Take the very weights that the first attempt of `run` began with. Errors: StoreError when they are others now."""
    start = _first_start(run)
    if start is None or start.init is None:
        return None
    taken = initialise(trainable, RunDirectory.find(start.init["run"], run.path.parent), start.init["checkpoint"])
    if taken.sha256 != start.init["weights_sha256"]:
        raise StoreError(f"{run.path}: {taken.checkpoint.name} of {taken.run.path} is not what this run began with")
    return taken


def initialise(trainable: Trainable, run: RunDirectory, name: str | None = None) -> Weights:
    """Take the weights of an earlier run: of its best validation, or the newest where that is gone; or of `name`.

    Errors: InputError unless architecture, names and shapes all match, or when there is no valid checkpoint.
    """
    checkpoint, manifest, state, rejected = _with_weights(run, name)
    theirs = {"model_type": manifest.stamp.model_type, **manifest.stamp.architecture}
    ours = {"model_type": trainable.model_type, **trainable.architecture}
    differing = [
        f"{key} {theirs.get(key)!r} there, {ours.get(key)!r} here"
        for key in {**theirs, **ours}
        if theirs.get(key) != ours.get(key)
    ]
    if differing:
        raise InputError(f"{checkpoint.name} of {run.id} is of another architecture: {'; '.join(differing)}")
    trainable.load_weights(state)
    return Weights(run, checkpoint, manifest.files["model.safetensors"].sha256, rejected)


def _with_weights(run: RunDirectory, name: str | None) -> tuple[Checkpoint, Manifest, State, Rejected]:
    checkpoints = Checkpoints(open_store(run.checkpoints))
    best = best_of(run.read_validations())
    chosen = Checkpoint.named(name or (best.checkpoint if best else ""))
    rejected: list[tuple[Checkpoint, str]] = []
    if chosen is not None and (name or chosen in checkpoints.candidates(run.limits())):
        try:
            return chosen, *checkpoints.load(chosen), rejected
        except DamagedCheckpointError as error:
            if name:
                raise
            rejected.append((chosen, str(error)))
    found = newest(run)
    if found.loaded is None:
        raise InputError(f"{run.path} has no checkpoint to take weights from")
    return *found.loaded, [*rejected, *found.rejected]
