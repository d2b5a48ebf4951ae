"""The models, each held to the suite of every trainable, and to exact resumes: one class a model."""

from pathlib import Path
from typing import Any

import numpy as np

from tests import series
from tests.acceptance import harness
from tests.suites.resumes import ResumeTests
from tests.suites.trainable import TrainableTests

AGENT = {
    "train__learning_rate": 3e-3,
    "optimizer__weight_decay": 0.0,
    "guards": {"explosion": {"policy": "off"}},
}


def labelled_sequences(folder: Path) -> Path:
    """Write 100 sequences of 5 to 12 positions, with the mean of each as what is told of it."""
    generator = np.random.default_rng(0)
    x, lengths = generator.normal(size=(100, 12, 2)).astype("f4"), generator.integers(5, 13, 100)
    told = np.array([values[:length, 0].mean() for values, length in zip(x, lengths, strict=True)])
    parts = {"x": x, "y": told, "lengths": lengths}
    arrays = {name: part[:80] for name, part in parts.items()}
    held_out = {f"{name}_validation": part[80:] for name, part in parts.items()}
    np.savez(folder / "sequences.npz", **arrays, **held_out)  # type: ignore[arg-type]  # its stub takes arrays by name, too
    return folder / "sequences.npz"


def forecaster(folder: Path, **model: Any) -> dict[str, Any]:
    """Give a forecaster of two series with inputs of each kind; some values are missing."""
    both = [*series.hours(), *series.hours()]
    load = [*series.wave(), *series.wave(seed=1, level=100.0)]
    columns = {"time": both, "load": [None if row % 90 == 7 else value for row, value in enumerate(load)]}
    columns |= {
        "place": ["here"] * series.ROWS + ["there"] * series.ROWS,
        "area": [80.0] * series.ROWS + [120.0] * series.ROWS,
    }
    columns["price"] = [row % 5 for row in range(2 * series.ROWS)]
    path = series.write(folder / "load.csv", columns)
    inputs = {"id": "place", "static": ["place", "area"], "categorical": ["place", "day_of_week"], "known": ["price"]}
    calendar = {"calendar": ["hour_of_day", "day_of_week"], "missing": "carry_forward", "window_scaling": "standard"}
    data = series.section(path, **inputs, **calendar, context=8, horizon=3)
    return harness.config(model=model, data=data, train__batch_size=40)


class TestLM(TrainableTests, ResumeTests):
    def configuration(self, folder: Path) -> dict[str, Any]:
        shards = harness.token_shards(folder / "shards", tokens=1_040)
        return harness.language_model(shards)


class TestMamba2(TrainableTests, ResumeTests):
    def configuration(self, folder: Path) -> dict[str, Any]:
        shards = harness.token_shards(folder / "shards", tokens=1_040)
        model = {"type": "mamba2", "layers": 2, "width": 32, "head_width": 16, "state_size": 8, "context": 16}
        return harness.language_model(shards, model={**model, "chunk": 8})


class TestMamba2Sequence(TrainableTests, ResumeTests):
    def configuration(self, folder: Path) -> dict[str, Any]:
        model = {"type": "mamba2_sequence", "task": "regression", "layers": 1, "width": 16, "head_width": 16}
        data = {"path": str(labelled_sequences(folder))}
        return harness.config(model={**model, "state_size": 8, "chunk": 8}, data=data, train__batch_size=8)


class TestDQN(TrainableTests, ResumeTests):
    def configuration(self, folder: Path) -> dict[str, Any]:
        acting = {"environment": "CartPole-v1", "environments": 2, "validation_episodes": 2, "learning_starts": 32}
        replayed = {"replay_size": 96, "acting_steps": 4, "round_samples": 32, "env_steps_per_epoch": 16}
        model = {"type": "dqn", "hidden_dims": [16], "dueling": True, "n_step": 3, "target_every": 5}
        data = {**acting, **replayed, "priority": {}}
        return harness.config(model=model, data=data, train__batch_size=8, **AGENT)


class TestPPO(TrainableTests, ResumeTests):
    def configuration(self, folder: Path) -> dict[str, Any]:
        acting = {"environment": "Pendulum-v1", "environments": 2, "rollout_steps": 16, "validation_episodes": 2}
        normal = {"normalize_observations": True, "normalize_rewards": True, "env_steps_per_epoch": 32}
        model = {"type": "ppo", "hidden_dims": [16], "update_epochs": 1}
        return harness.config(model=model, data={**acting, **normal}, train__batch_size=8, **AGENT)


class TestTFT(TrainableTests, ResumeTests):
    def configuration(self, folder: Path) -> dict[str, Any]:
        return forecaster(folder, type="tft", width=8, heads=2)


class TestNLinear(TrainableTests, ResumeTests):
    def configuration(self, folder: Path) -> dict[str, Any]:
        return forecaster(folder, type="nlinear")


class TestDLinear(TrainableTests, ResumeTests):
    def configuration(self, folder: Path) -> dict[str, Any]:
        return forecaster(folder, type="dlinear", moving_average=5)
