"""Folders of weights: what stands in one is enough to act and to forecast as the run's own model does."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tests.acceptance import harness
from trainwright import exports, runs
from trainwright.checkpoints.checkpoints import Checkpoints
from trainwright.checkpoints.open import open_store
from trainwright.config import RunConfig
from trainwright.data.series import Window
from trainwright.errors import InputError
from trainwright.jsonfile import read_json, write_json
from trainwright.models.build import build
from trainwright.models.networks import CLIPPED_AT, MOMENTS_EPS
from trainwright.rundir import RunDirectory

CPU = torch.device("cpu")
ROWS = 200


def trained(folder: Path, model: dict[str, Any], data: dict[str, Any]) -> RunDirectory:
    values = harness.config(
        model=model, data=data, train__steps=12, train__batch_size=16, validate__every=6, optimizer__weight_decay=0.0
    )
    result = runs.execute(RunConfig.parse(values), runs_dir=folder)
    assert result.exit_code == 0, result.why
    return result.run


def agent_run(folder: Path, environment: str) -> RunDirectory:
    data = {"environment": environment, "environments": 2, "rollout_steps": 16, "validation_episodes": 2}
    model = {"type": "ppo", "hidden_dims": [8, 4], "update_epochs": 2, "activation": "relu"}
    return trained(folder, model, {**data, "normalize_observations": True, "normalize_rewards": True})


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return agent_run(tmp_path_factory.mktemp("runs"), "CartPole-v1")


@pytest.fixture(scope="module")
def forecast(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    folder = tmp_path_factory.mktemp("runs")
    lines = [f"{row},{40 + 9 * math.sin(row / 3) + row % 5},{'ab'[row % 7 // 4]}" for row in range(ROWS)]
    (folder / "load.csv").write_text("\n".join(["hour,load,shift", *lines]) + "\n")
    data: dict[str, Any] = {"path": str(folder / "load.csv"), "time": "hour", "target": "load", "known": ["shift"]}
    data |= {"categorical": ["shift"], "context": 12, "horizon": 4, "window_scaling": "last"}
    return trained(folder, {"type": "nlinear"}, data)


def own_model(run: RunDirectory) -> Any:
    trainable = build(RunConfig.load(run.config), CPU)
    checkpoints = Checkpoints(open_store(run.checkpoints))
    trainable.load_weights(checkpoints.load(exports.chosen(run, checkpoints, "best"))[1])
    return trainable


class Folder:
    """What stands in an exported folder, and nothing of the run."""

    def __init__(self, path: Path) -> None:
        self.weights: Mapping[str, Tensor] = load_file(path / "model.safetensors")
        told = read_json(path / "config.json")
        self.model_type, self.architecture, self.interface = (
            told[name] for name in ("model_type", "architecture", "interface")
        )

    def layers(self, prefix: str) -> nn.Sequential:
        """Make the perceptron of the architecture in plain torch, and take its weights by name."""
        widths = [self.architecture["features"], *self.architecture["hidden_dims"], self.architecture["actions"]]
        parts: list[nn.Module] = []
        for place, width in enumerate(widths[1:]):
            parts += [nn.Linear(widths[place], width), nn.ReLU()]
        net = nn.Sequential(*parts[:-1])
        start = f"{prefix}."
        named = {name.removeprefix(start): t for name, t in self.weights.items() if name.startswith(start)}
        net.load_state_dict(named)
        return net

    def scores(self, observations_nf: Tensor) -> Tensor:
        mean, variance = (self.weights[f"policy.moments.{name}"] for name in ("mean", "variance"))
        normal_nf = (observations_nf.double() - mean) / (variance + MOMENTS_EPS).sqrt()
        with torch.no_grad():
            scores: Tensor = self.layers("policy.actor")(normal_nf.clamp(-CLIPPED_AT, CLIPPED_AT).float())
        return scores


def test_a_policy_of_few_actions_acts_equally_out_of_its_folder_alone(cartpole: RunDirectory, tmp_path: Path) -> None:
    folder = Folder(exports.export(cartpole, tmp_path / "policy"))
    assert folder.model_type == "ppo"
    assert folder.interface["environment"] == "CartPole-v1"
    assert folder.interface["actions"] == {"discrete": True, "count": 2, "start": 0}
    seen_nf = torch.from_numpy(np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32))
    own = own_model(cartpole)
    assert folder.scores(seen_nf).numpy().tobytes() == own.policy.scores(seen_nf.numpy(), CPU).tobytes()
    assert folder.scores(seen_nf).argmax(1).tolist() == own.best_actions(seen_nf.numpy()).tolist()


def test_a_policy_of_numbers_acts_equally_within_the_bounds_that_its_folder_tells(tmp_path: Path) -> None:
    run = agent_run(tmp_path, "Pendulum-v1")
    folder, own = Folder(exports.export(run, tmp_path / "policy")), own_model(run)
    actions = folder.interface["actions"]
    assert actions == {"discrete": False, "count": 1, "shape": [1], "low": [-2.0], "high": [2.0]}
    seen_nf = torch.from_numpy(np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32))
    taken = own.environments.spaces.actions.taken(own.best_actions(seen_nf.numpy()))
    told = folder.scores(seen_nf).clamp(torch.tensor(actions["low"]), torch.tensor(actions["high"]))
    assert told.numpy().tobytes() == taken.tobytes()


def test_a_forecaster_gives_equal_quantiles_out_of_its_folder_alone(forecast: RunDirectory, tmp_path: Path) -> None:
    folder, own = Folder(exports.export(forecast, tmp_path / "forecaster")), own_model(forecast)
    assert folder.architecture["quantiles"] == [0.1, 0.5, 0.9]
    assert folder.interface["categories"] == {"shift": ["a", "b"]}
    assert (folder.interface["target"], folder.interface["scaled"]) == (["load"], ["load"])
    batch: Window = own.source.windows.batch(np.array([3, 50, 90]))
    last_b1 = batch.observed_reals[:, -1:, 0]
    past_bc = batch.observed_reals[..., 0] - last_b1
    changes = past_bc @ folder.weights["layer.weight"].T + folder.weights["layer.bias"]
    quantiles_bhq = changes.reshape(3, folder.architecture["horizon"], -1) + last_b1[..., None]
    with torch.no_grad():
        assert torch.allclose(quantiles_bhq, own(batch), atol=1e-6)
    raw = np.array([40 + 9 * math.sin(row / 3) + row % 5 for row in range(3, 15)])
    mean, deviation = (folder.weights[f"scaler.{name}"][0, 0].item() for name in ("mean_sr", "deviation_sr"))
    assert np.allclose((raw - mean) / deviation, batch.observed_reals[0, :, 0].numpy(), atol=1e-5)


def test_an_export_tells_where_it_is_from_and_replaces_an_earlier_one(cartpole: RunDirectory, tmp_path: Path) -> None:
    out = tmp_path / "policy"
    exports.export(cartpole, out, choice="last")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (out / name).write_text("of a language model that was exported there before", encoding="utf-8")
    told = read_json(exports.export(cartpole, out, kind="safetensors", choice="best") / "trainwright.json")
    assert (told["run"], told["checkpoint"]) == (cartpole.id, f"step-{told['step']:08d}.a1")
    assert {path.name for path in out.iterdir()} == {"model.safetensors", "config.json", "trainwright.json"}


def test_what_is_no_language_model_is_refused_as_one(cartpole: RunDirectory, tmp_path: Path) -> None:
    told = "model type 'ppo' is no language model, which --format hf is for; give --format safetensors"
    with pytest.raises(InputError, match=told):
        exports.export(cartpole, tmp_path / "policy", kind="hf")
    assert not (tmp_path / "policy").exists()


def test_a_run_that_did_not_record_how_it_is_used_is_refused(cartpole: RunDirectory, tmp_path: Path) -> None:
    recorded = cartpole.environment.read_bytes()
    write_json(cartpole.environment, {k: v for k, v in read_json(cartpole.environment).items() if k != "interface"})
    try:
        with pytest.raises(InputError, match=r"environment\.json: holds no 'interface'"):
            exports.export(cartpole, tmp_path / "policy")
    finally:
        cartpole.environment.write_bytes(recorded)
    assert not (tmp_path / "policy").exists()
