"""What an attempt begins from: a checkpoint of its own run or of its parent, or the weights of an earlier run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright import yamlfile
from trainwright.checkpoints.checkpoints import Checkpoint, Checkpoints, Found, Manifest
from trainwright.checkpoints.open import open_store
from trainwright.config import SET_BY_MODE, RunConfig
from trainwright.errors import InputError, StoreError
from trainwright.rundir import RunDirectory, read_json
from trainwright.state import State
from trainwright.trainable import Trainable


@dataclass(frozen=True, slots=True)
class Origin:
    """The checkpoint that an attempt begins from, with the conditions and data under which it was made."""

    run: RunDirectory
    checkpoint: Checkpoint
    conditions: Mapping[str, Any]
    hashes: Mapping[str, str]
    state: State


def newest(run: RunDirectory) -> Found:
    """Load the newest valid checkpoint of `run`; nothing is written to it."""
    return Checkpoints(open_store(run.checkpoints)).newest_valid(run.limits())


def origin_in(run: RunDirectory, found: Found) -> Origin | None:
    return _origin(run, *found.loaded) if found.loaded else None


def of_parent(run: RunDirectory) -> Origin:
    """Give the newest checkpoint of the run that a new one goes on from. Errors: StoreError when none is valid."""
    origin = origin_in(run, newest(run))
    if origin is None:
        raise StoreError(f"{run.path}: no checkpoint of this run is valid; there is nothing to go on from")
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
    start = next((attempt.start() for attempt in run.attempts()), None)
    if start is None or start.parent is None or start.checkpoint is None:
        return None
    parent = RunDirectory.find(start.parent_directory or start.parent, run.path.parent)
    checkpoint = Checkpoint.named(start.checkpoint)
    if checkpoint is None:
        raise InputError(f"{run.path}: its first start.json names {start.checkpoint!r}, which is no checkpoint")
    return _origin(parent, checkpoint, *Checkpoints(open_store(parent.checkpoints)).load(checkpoint))


def _origin(run: RunDirectory, checkpoint: Checkpoint, manifest: Manifest, state: State) -> Origin:
    return Origin(run, checkpoint, manifest.stamp.conditions, manifest.stamp.hashes, state)


def initialise(trainable: Trainable, init: str | None) -> None:
    """Take the weights of an earlier run. Errors: InputError unless architecture, names and shapes all match."""
    if init is None:
        return
    run = RunDirectory.find(init, Path())
    loaded = newest(run).loaded
    if loaded is None:
        raise InputError(f"train.init: {run.path} has no valid checkpoint to take weights from")
    checkpoint, manifest, state = loaded
    theirs = {"model_type": manifest.stamp.model_type, **manifest.stamp.architecture}
    ours = {"model_type": trainable.model_type, **trainable.architecture}
    differing = [
        f"{key} {theirs.get(key)!r} there, {ours.get(key)!r} here"
        for key in {**theirs, **ours}
        if theirs.get(key) != ours.get(key)
    ]
    if differing:
        raise InputError(
            f"train.init: {checkpoint.name} of {run.id} is of another architecture: {'; '.join(differing)}"
        )
    trainable.load_weights(state)
