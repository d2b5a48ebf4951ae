import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch
from pydantic import BaseModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from trainwright import exports, yamlfile
from trainwright.config import RunConfig
from trainwright.data.prepare import PrepareRequest, prepare
from trainwright.errors import DataError, InputError
from trainwright.models.build import check
from trainwright.models.dqn_options import DQNDataOptions, DQNOptions
from trainwright.models.lm import LM, DataOptions, LMOptions
from trainwright.models.ppo_options import PPODataOptions, PPOOptions
from trainwright.models.starting import known_names, starting_file
from trainwright.rundir import RunDirectory, all_runs

Command = Callable[..., CompletedProcess[str]]
TEXT = "def add(a, b):\n    return a + b\n\n" * 120


@pytest.fixture(scope="module")
def command(child_environment: dict[str, str]) -> Command:
    def run(*arguments: str, cwd: Path, code: int = 0) -> CompletedProcess[str]:
        line = [sys.executable, "-m", "trainwright", *arguments]
        done = subprocess.run(
            line, cwd=cwd, env=child_environment, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == code, done.stderr
        return done

    return run


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, command: Command) -> Path:
    """Give a folder with prepared data, a run.yaml and one run that ended: 5 steps, validated every 2."""
    folder = tmp_path_factory.mktemp("lm")
    (folder / "text.txt").write_text(TEXT)
    request = PrepareRequest(input=folder / "text.txt", out=folder / "data", tokenizer="characters", split="tail")
    prepare(request)
    config = {
        "name": "tiny",
        "device": "cpu",
        "model": {"type": "lm", "layers": 2, "width": 16, "heads": 2, "context": 16},
        "data": {"path": str(folder / "data")},
        "train": {"steps": 5, "batch_size": 4, "learning_rate": 1e-2, "threads": 1},
        "validate": {"every": 2, "batches": 2},
    }
    (folder / "run.yaml").write_text(yamlfile.dump(config))
    command("train", "run.yaml", "--json", cwd=folder)
    return folder


@pytest.fixture(scope="module")
def run(place: Path) -> RunDirectory:
    (found,) = all_runs(place / "runs")
    return found


# -- init ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", known_names())
def test_a_starting_file_is_valid_as_it_stands(name: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(starting_file(name))
    config = RunConfig.load(tmp_path / "run.yaml")
    check(config.resolved())
    assert config.model.type == name


def test_the_starting_file_of_lm_shows_every_key(tmp_path: Path) -> None:
    data = yamlfile.parse(starting_file("lm"), "lm.yaml").data
    assert set(keys(RunConfig)) - {"model", "data"} <= set(present(data))
    assert set(LMOptions.model_fields) == set(data["model"])
    assert set(DataOptions.model_fields) == set(data["data"])


@pytest.mark.parametrize(
    ("name", "options", "data_options"),
    [("ppo", PPOOptions, PPODataOptions), ("dqn", DQNOptions, DQNDataOptions)],
)
def test_the_starting_file_of_an_agent_shows_every_key_but_those_of_early_stopping(
    name: str, options: type[BaseModel], data_options: type[BaseModel]
) -> None:
    data = yamlfile.parse(starting_file(name), f"{name}.yaml").data
    expected = {key for key in keys(RunConfig) if not key.startswith("early_stopping.")}
    assert expected - {"model", "data"} <= set(present(data))
    assert set(options.model_fields) == set(data["model"])
    assert set(data_options.model_fields) == set(data["data"])


def test_the_defaults_that_the_starting_file_of_lm_shows_are_those_of_the_schema() -> None:
    config = RunConfig.parse(yamlfile.parse(starting_file("lm"), "lm.yaml").data)
    for section in ("optimizer", "checkpoint", "guards"):
        assert getattr(config, section) == type(getattr(config, section))()


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        key = prefix + (field.alias or name)
        within = next(
            (t for t in (field.annotation, *getattr(field.annotation, "__args__", ())) if is_section(t)), None
        )
        yield from keys(within, f"{key}.") if within and within.model_fields and "model" not in key else [key]


def is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def present(data: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in data.items():
        yield prefix + name
        if isinstance(value, dict):
            yield from present(value, f"{prefix}{name}.")


def test_init_prints_the_file_and_knows_its_names(command: Command, tmp_path: Path) -> None:
    assert command("init", "lm", cwd=tmp_path).stdout == starting_file("lm")
    refused = command("init", "ml", cwd=tmp_path, code=2)
    told = f"did you mean 'lm'? known names: {', '.join(known_names())}"
    assert refused.stderr == f"error: there is no starting file 'ml'; {told}\n"
    assert refused.stdout == ""


# -- plan ----------------------------------------------------------------------------------------------------------


def test_plan_prints_what_is_planned_and_what_was_measured(command: Command, place: Path) -> None:
    lines = command("plan", "run.yaml", cwd=place).stdout.splitlines()
    rows = {line[:12].strip(): line[13:] for line in lines if not line.startswith(" ")}
    assert {"parameters", "weights", "gradients", "optimizer", "activations", "planned peak", "disk"} <= rows.keys()
    assert "320 planned" in rows["tokens"]
    assert "median of 5 measured on this machine's cpu after 2 of warm-up; 5 steps: about" in rows["time"]
    assert "fits" not in rows


def test_plan_gives_one_json_document_with_a_proposal(command: Command, place: Path) -> None:
    whole = json.loads(command("plan", "run.yaml", "--json", cwd=place).stdout)
    peak = whole["memory"]["peak_bytes"]
    assert peak == sum(whole["memory"]["at_peak"].values())
    assert whole["proposal"] is None
    arguments = ("plan", "run.yaml", "--json", "--device-memory", f"{peak - 1}B")
    found = json.loads(command(*arguments, cwd=place).stdout)
    assert found["fits"] is False
    assert found["proposal"]["batch_size"] * found["proposal"]["accumulate"] == 4
    assert found["proposal"]["memory"]["peak_bytes"] < peak


def test_plan_of_an_agent_tells_its_environment_steps_and_measures_whole_rounds(
    command: Command, tmp_path: Path
) -> None:
    text = starting_file("ppo").replace("environments: 8 ", "environments: 2 ")
    (tmp_path / "run.yaml").write_text(text)
    arguments = ("data.rollout_steps=32", "train.batch_size=32", "model.update_epochs=2", "train.env_steps=6400")
    lines = command("plan", "run.yaml", *arguments, cwd=tmp_path).stdout.splitlines()
    rows = {line[:12].strip(): line[13:] for line in lines if not line.startswith(" ")}
    assert rows["data"].split()[:2] == ["2.5", "KiB"], "64 samples of 4 × 4 + 8 + 4 × 4 bytes"
    assert rows["samples"].startswith("12,800 planned")
    assert re.match(r"6,400 planned, [\d,]+ a second as measured, updates included", rows["env steps"])
    assert "mean, acting included, of 8 measured on this machine's cpu after 4 of warm-up" in rows["time"]


def test_plan_refuses_what_cannot_fit(command: Command, place: Path) -> None:
    refused = command("plan", "run.yaml", "--device-memory", "1KiB", cwd=place, code=2)
    assert "at a micro-batch of 1 it needs" in refused.stderr
    assert "1024 were given" in refused.stderr
    assert "as in 4GiB" in command("plan", "run.yaml", "--device-memory", "much", cwd=place, code=2).stderr


# -- sample --------------------------------------------------------------------------------------------------------


def test_sample_continues_the_prompt_and_equal_seeds_give_equal_text(
    command: Command, place: Path, run: RunDirectory
) -> None:
    printed = command("sample", run.id, "--prompt", "def ", "--max-tokens", "20", cwd=place).stdout
    assert printed.startswith("def ")
    assert len(printed) > len("def \n")
    assert printed == exports.sample(run, "def ", max_tokens=20) + "\n"
    assert printed != exports.sample(run, "def ", max_tokens=20, seed=1) + "\n"


def test_the_best_checkpoint_is_that_of_the_best_validation(run: RunDirectory) -> None:
    best = min(run.read_validations(), key=lambda row: row.value if row.value is not None else math.inf)
    assert exports.load_decoder(run).checkpoint.name == best.checkpoint
    assert exports.load_decoder(run, "last").checkpoint.step == 5


def test_sample_refuses_another_choice_and_an_unknown_run(command: Command, place: Path, run: RunDirectory) -> None:
    with pytest.raises(InputError, match="checkpoint 'newest' is not one of: best, last"):
        exports.sample(run, "", choice="newest")
    assert f"newest runs: {run.id}" in command("sample", "nothing", cwd=place, code=2).stderr


def test_without_its_tokenizer_a_run_gives_no_text(command: Command, place: Path, run: RunDirectory) -> None:
    file, aside = place / "data" / "tokenizer.json", place / "aside.json"
    file.rename(aside)
    try:
        gone = command("sample", run.id, cwd=place, code=6)
        file.write_text(aside.read_text() + " ")
        with pytest.raises(DataError, match="is another tokenizer"):
            exports.sample(run, "")
    finally:
        aside.rename(file)
    assert f"{file}: the tokenizer of {run.id} is not there; put its data folder back" in gone.stderr


# -- export --------------------------------------------------------------------------------------------------------


def test_an_export_gives_the_same_logits_in_transformers(
    command: Command, place: Path, run: RunDirectory, tmp_path: Path
) -> None:
    out = tmp_path / "hf"
    done = command("export", run.id, "--format", "hf", "--out", str(out), cwd=place)
    assert done.stdout == f"{out}\n"
    tokens_bt = torch.arange(14)[None] % 14
    theirs = AutoModelForCausalLM.from_pretrained(out)(tokens_bt).logits
    assert torch.allclose(theirs, exports.load_decoder(run).decoder(tokens_bt), atol=1e-5)
    ids = AutoTokenizer.from_pretrained(out)("def add")["input_ids"]
    assert len(ids) == len("def add")
    provenance = json.loads((out / "trainwright.json").read_bytes())
    assert (provenance["run"], provenance["checkpoint"]) == (run.id, exports.load_decoder(run).checkpoint.name)


def test_an_export_replaces_an_earlier_one_and_nothing_else(
    command: Command, place: Path, run: RunDirectory, tmp_path: Path
) -> None:
    out = tmp_path / "hf"
    exports.export(run, out, kind="hf", choice="last")
    last = (out / "model.safetensors").read_bytes()
    exports.export(run, out, kind="hf", choice="best")
    exports.export(run, out, kind="hf", choice="last")
    assert (out / "model.safetensors").read_bytes() == last
    foreign = tmp_path / "mine"
    foreign.mkdir()
    (foreign / "config.json").write_text("{}")
    refused = command("export", run.id, "--out", str(foreign), cwd=place, code=2)
    assert f"{foreign}: is not empty and holds no earlier export" in refused.stderr
    assert [path.name for path in foreign.iterdir()] == ["config.json"]


def test_a_language_model_is_exported_plainly_with_all_that_rebuilds_it(
    command: Command, place: Path, run: RunDirectory, tmp_path: Path
) -> None:
    out = tmp_path / "plain"
    command("export", run.id, "--format", "safetensors", "--out", str(out), cwd=place)
    assert {"model.safetensors", "config.json", "tokenizer.json", "trainwright.json"} == {p.name for p in out.iterdir()}
    told = json.loads((out / "config.json").read_bytes())
    decoder = LM.rebuilt(told["architecture"])
    named = {name.removeprefix("decoder."): tensor for name, tensor in load_file(out / "model.safetensors").items()}
    decoder.load_state_dict(named)
    tokens_bt = torch.arange(14)[None] % 14
    assert torch.equal(decoder(tokens_bt), exports.load_decoder(run).decoder(tokens_bt))


def test_an_unknown_format_is_refused(command: Command, place: Path, run: RunDirectory, tmp_path: Path) -> None:
    refused = command("export", run.id, "--format", "onnx", "--out", str(tmp_path / "x"), cwd=place, code=2)
    assert "format 'onnx' is not one of: hf, safetensors" in refused.stderr
    assert not (tmp_path / "x").exists()
