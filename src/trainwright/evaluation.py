"""How good the agent of a finished run is: episodes on seeds that did not select its checkpoint."""

from dataclasses import asdict, dataclass
from typing import Any, cast

import torch

from trainwright import rng
from trainwright.checkpoints.checkpoints import Checkpoints
from trainwright.checkpoints.open import open_store
from trainwright.config import RunConfig
from trainwright.errors import InputError
from trainwright.exports import chosen
from trainwright.models.build import build
from trainwright.rundir import RunDirectory
from trainwright.trainable import Validation

DEVICE = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The mean of `metric` over `episodes` by `seed`, with its standard error, of one checkpoint of a run."""

    run: str
    checkpoint: str
    step: int
    metric: str
    value: float
    standard_error: float | None
    episodes: int
    seed: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def evaluate(run: RunDirectory, *, episodes: int = 100, seed: int = 0, choice: str = "best") -> Evaluation:
    """Play episodes with the policy of a checkpoint, on the CPU. Every hash is verified, nothing is written.

    Errors: InputError for a model that has no `evaluate` or fewer than 2 episodes; StoreError when there is no such
    checkpoint; DamagedCheckpointError.
    """
    if episodes < 2:
        raise InputError(f"--episodes {episodes}: a standard error needs 2 or more")
    checkpoints = Checkpoints(open_store(run.checkpoints))
    checkpoint = chosen(run, checkpoints, choice)
    manifest, state = checkpoints.load(checkpoint)
    with rng.preserved(DEVICE):
        trainable = build(RunConfig.load(run.config).resolved(), DEVICE)
    play = getattr(trainable, "evaluate", None)
    if play is None:
        kind = manifest.stamp.model_type
        raise InputError(f"{run.id}: model type {kind!r} is not evaluated by episodes; its validations are on record")
    trainable.load_weights(state)
    found = cast("Validation", play(episodes, seed))
    return Evaluation(
        run=run.id,
        checkpoint=checkpoint.name,
        step=manifest.step,
        metric=found.metric,
        value=found.value,
        standard_error=found.standard_error,
        episodes=found.n,
        seed=seed,
    )
