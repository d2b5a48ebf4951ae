"""How good the model of a finished run is: on what did not select its checkpoint, where there is such.

Evaluation             a number of one checkpoint of a run
├── EpisodeEvaluation  an agent, by episodes on seeds that no validation has
├── ForecastEvaluation a forecaster, by the rows of its test part, beside simple forecasts of the same windows
└── HeldOutEvaluation  any other model, by what its run held out or by other data, and which of the two it was
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch

from trainwright import rng
from trainwright.config import RunConfig
from trainwright.errors import DataError, InputError
from trainwright.exports import LANGUAGE_MODELS, load_decoder, saved
from trainwright.models.agents import Agent
from trainwright.models.build import build, check
from trainwright.models.forecast_evaluation import Band, Forecasted, compared
from trainwright.models.forecasters import Forecaster
from trainwright.models.mamba2_sequence import Mamba2Sequence
from trainwright.models.token_evaluation import all_of, held_out, score
from trainwright.rundir import RunDirectory
from trainwright.trainable import Trainable, Validation

DEVICE = torch.device("cpu")
EPISODES: Final = 100
BEST: Final = "best"
NO_EPISODES: Final = "plays no episodes; leave --episodes and --seed out"


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


@dataclass(frozen=True, slots=True)
class HeldOutEvaluation(Evaluation):
    """Any other model over `n` items of the run's own held-out data (`data` is None), or of all that `data` holds.

    `chose_checkpoint`: validations on these very data chose it, so the value is better than on others. `is_other`: the
    hash of `data` is another than that of the run's own; None where none was compared.
    """

    unit: str
    n: int
    items: str
    measures: Mapping[str, float | None]
    baselines: Mapping[str, float]
    data: str | None
    chose_checkpoint: bool
    is_other: bool | None


def evaluate(
    run: RunDirectory,
    *,
    episodes: int | None = None,
    seed: int | None = None,
    data: Path | None = None,
    choice: str = BEST,
) -> Evaluation:
    """Evaluate a checkpoint of a run, on the CPU. Every hash is verified, nothing is written.

    An agent plays `episodes` (None: 100) by `seed` (None: 0). `data`: other shards for a language model, another file
    for mamba2_sequence. Errors: InputError for an option that is not for the model, and fewer than 2 episodes;
    StoreError when there is no such checkpoint; DamagedCheckpointError; DataError when the data are not what the run
    was trained on, or `data` are not of their kind.
    """
    config = RunConfig.load(run.config).resolved()
    if config.model.type in LANGUAGE_MODELS:
        if episodes is not None or seed is not None:
            raise InputError(f"{run.id}: a language model {NO_EPISODES}")
        return _by_tokens(run, config, data, choice)
    checkpoint, manifest, state = saved(run, choice)
    with rng.preserved(DEVICE):
        trainable = build(config, DEVICE)
    _refuse(run, trainable, episodes=episodes, seed=seed, data=data)
    _check_data(manifest.stamp.hashes, trainable.data_hashes)
    trainable.load_weights(state)
    own: dict[str, Any] = {"run": run.id, "checkpoint": checkpoint.name, "step": manifest.step}
    if isinstance(trainable, Agent):
        return _by_episodes(trainable, EPISODES if episodes is None else episodes, seed or 0, own)
    if isinstance(trainable, Forecaster):
        trainable.load_scales(state)
        return _by_test_rows(trainable, own)
    return _by_held_out(trainable, own, data, choice)


def _refuse(
    run: RunDirectory, trainable: Trainable, *, episodes: int | None, seed: int | None, data: Path | None
) -> None:
    """Errors: InputError for an option that says nothing of such a model."""
    plays = isinstance(trainable, Agent)
    kind = "a forecaster" if isinstance(trainable, Forecaster) else f"a model of type {trainable.model_type!r}"
    if not plays and (episodes is not None or seed is not None):
        raise InputError(f"{run.id}: {kind} {NO_EPISODES}")
    if data is not None and not isinstance(trainable, Mamba2Sequence):
        where = "in the environment of its run" if plays else "by the data of its run"
        raise InputError(
            f"{run.id}: {kind} is evaluated {where} alone; leave --data out, which is for language models and "
            "mamba2_sequence"
        )


def _check_data(stamped: Mapping[str, str], found: Mapping[str, str]) -> None:
    if stamped != dict(found):
        raise DataError(
            f"the data are not those of the run: {dict(found)}, its checkpoint names {dict(stamped)}; "
            "put what data.path names back as it was"
        )


def _mean(found: Validation) -> dict[str, Any]:
    return {"metric": found.metric, "value": found.value, "standard_error": found.standard_error}


def _by_episodes(agent: Agent, episodes: int, seed: int, own: Mapping[str, Any]) -> EpisodeEvaluation:
    if episodes < 2:
        raise InputError(f"--episodes {episodes}: a standard error needs 2 or more")
    found = agent.evaluate(episodes, seed)
    return EpisodeEvaluation(**own, **_mean(found), episodes=found.n, seed=seed)


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


def _by_held_out(trainable: Trainable, own: Mapping[str, Any], data: Path | None, choice: str) -> HeldOutEvaluation:
    """Judge labelled sequences, all of them, or else what the model's own `validate` judges."""
    if isinstance(trainable, Mamba2Sequence):
        items, (found, baselines) = "sequences", trainable.evaluate(data)
    else:
        items, found, baselines = trainable.unit, trainable.validate(), trainable.baselines
    return HeldOutEvaluation(
        **own,
        **_mean(found),
        unit=trainable.validation_metric.unit,
        n=found.n,
        items=items,
        measures=found.measures,
        baselines=baselines,
        data=None if data is None else str(data),
        chose_checkpoint=data is None and choice == BEST,
        is_other=None,
    )


def _by_tokens(run: RunDirectory, config: RunConfig, data: Path | None, choice: str) -> HeldOutEvaluation:
    """Score every held-out token of the run's shards, or every token of other shards of the same tokenizer."""
    loaded = load_decoder(run, choice)
    stamped = loaded.manifest.stamp.hashes
    text = held_out(check(config)[2]) if data is None else all_of(data, stamped)
    if data is None:
        _check_data(stamped, text.hashes)
    found = score(loaded.decoder, text)
    return HeldOutEvaluation(
        run=run.id,
        checkpoint=loaded.checkpoint.name,
        step=loaded.manifest.step,
        **_mean(found.loss),
        unit="nats",
        n=found.loss.n,
        items="tokens",
        measures=found.measures,
        baselines=found.baselines,
        data=None if data is None else str(data),
        chose_checkpoint=data is None and choice == BEST,
        is_other=None if data is None else True,  # else `all_of` refused it
    )
