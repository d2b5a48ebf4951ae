"""How good the model of a finished run is, on what did not select its checkpoint.

Evaluation             a number of one checkpoint of a run
├── EpisodeEvaluation  an agent, by episodes on seeds that no validation has
└── ForecastEvaluation a forecaster, by the rows of its test part, beside simple forecasts of the same windows
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch

from trainwright import rng
from trainwright.config import RunConfig
from trainwright.errors import DataError, InputError
from trainwright.exports import saved
from trainwright.models.agents import Agent
from trainwright.models.build import build
from trainwright.models.forecast_evaluation import Band, Forecasted, compared
from trainwright.models.forecasters import Forecaster
from trainwright.rundir import RunDirectory
from trainwright.trainable import Trainable

DEVICE = torch.device("cpu")
EPISODES: Final = 100


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The mean of `metric` with its standard error, of one checkpoint of a run."""

    run: str
    checkpoint: str
    step: int
    metric: str
    value: float
    standard_error: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class EpisodeEvaluation(Evaluation):
    """An agent over `episodes` by `seed`."""

    episodes: int
    seed: int


@dataclass(frozen=True, slots=True)
class ForecastEvaluation(Evaluation):
    """A forecaster over all `windows` of the test rows. `forecasts` are by name, the run's own, `model`, first."""

    windows: int
    forecasts: Mapping[str, Forecasted]
    band: Band


def evaluate(
    run: RunDirectory, *, episodes: int | None = None, seed: int | None = None, choice: str = "best"
) -> Evaluation:
    """Evaluate a checkpoint of a run, on the CPU. Every hash is verified, nothing is written.

    An agent plays `episodes` (None: 100) by `seed` (None: 0). Errors: InputError for a model that is neither agent nor
    forecaster, episodes of one that plays none, and fewer than 2; StoreError when there is no such checkpoint;
    DamagedCheckpointError; DataError when the data of a forecaster are not what it was trained on.
    """
    checkpoint, manifest, state = saved(run, choice)
    with rng.preserved(DEVICE):
        trainable = build(RunConfig.load(run.config).resolved(), DEVICE)
    if isinstance(trainable, Forecaster) and (episodes is not None or seed is not None):
        raise InputError(f"{run.id}: a forecaster plays no episodes; leave --episodes and --seed out")
    if not isinstance(trainable, Agent | Forecaster):
        kind = f"model type {manifest.stamp.model_type!r}"
        raise InputError(f"{run.id}: {kind} is neither agent nor forecaster; its validations are on record")
    _check_data(manifest.stamp.hashes, trainable)
    trainable.load_weights(state)
    if isinstance(trainable, Forecaster):
        trainable.load_scales(state)
    own: dict[str, Any] = {"run": run.id, "checkpoint": checkpoint.name, "step": manifest.step}
    if isinstance(trainable, Agent):
        return _by_episodes(trainable, EPISODES if episodes is None else episodes, seed or 0, own)
    return _by_test_rows(trainable, own)


def _check_data(stamped: Mapping[str, str], trainable: Trainable) -> None:
    if stamped != dict(trainable.data_hashes):
        raise DataError(
            f"the data are not those of the run: {dict(trainable.data_hashes)}, its checkpoint names {dict(stamped)}; "
            "put the file of data.path back as it was"
        )


def _by_episodes(agent: Agent, episodes: int, seed: int, own: Mapping[str, Any]) -> EpisodeEvaluation:
    if episodes < 2:
        raise InputError(f"--episodes {episodes}: a standard error needs 2 or more")
    found = agent.evaluate(episodes, seed)
    return EpisodeEvaluation(
        **own,
        metric=found.metric,
        value=found.value,
        standard_error=found.standard_error,
        episodes=found.n,
        seed=seed,
    )


def _by_test_rows(forecaster: Forecaster, own: Mapping[str, Any]) -> ForecastEvaluation:
    found = compared(forecaster)
    first = next(iter(found.forecasts.values()))
    return ForecastEvaluation(
        **own,
        metric=forecaster.validation_metric.name,
        value=first.mae,
        standard_error=first.standard_error,
        windows=found.windows,
        forecasts=found.forecasts,
        band=found.band,
    )
