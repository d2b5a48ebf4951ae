"""What a configuration cannot mean for its model and data is told with file, line, key and what was expected."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.toys import Toy
from trainwright.budget import loop_settings, target_value
from trainwright.config import RunConfig
from trainwright.contract.load import contract_named_by
from trainwright.errors import DataError, InputError, TrainwrightError
from trainwright.models.build import build
from trainwright.trainable import Metric

TOY = "{type: tests.toys:Toy, n: 10}"
ENDLESS = "{type: tests.models.test_build:Endless, n: 10}"
LM = "{type: lm, layers: 1, width: 8, heads: 1, context: 8, vocabulary_size: 9}"


LEAST: dict[str, Any] = {"model": {"type": "lm"}, "train": {"steps": 1, "learning_rate": 1.0}}


class Endless(Toy):
    @property
    def micro_batches_per_epoch(self) -> int | None:
        return None


class WithABadMetric(Toy):
    @property
    def metrics(self) -> list[Metric]:
        return [Metric("lr", "1")]


class WithoutBuild: ...


class Unfinished(Toy):
    def __init__(self, setup: Any) -> None:
        super().__init__(setup)
        del self.source


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of tokens 0 to 9 in the current directory: whole, without validation data, too short, of odd size."""
    for name, files in {
        "whole": {"train.bin": 1_000, "val.bin": 100},
        "no-validation": {"train.bin": 1_000},
        "short": {"train.bin": 10, "val.bin": 100},
        "nothing": {},
    }.items():
        (tmp_path / name).mkdir()
        for file, size in files.items():
            (tmp_path / name / file).write_bytes((np.arange(size) % 10).astype("<u4").tobytes())
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "train.bin").write_bytes(b"12345")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def prepared(config: RunConfig) -> None:
    """Do what a run does before its directory is made."""
    contract_named_by(config)
    trainable = build(config, torch.device("cpu"))
    loop_settings(config, trainable)
    target_value(config, trainable)


def refusal(kind: type[TrainwrightError], model: str, train: str, line: str) -> str:
    """Give the error of a file with `train.…` of its own on line 4 and `line` on line 5."""
    file = Path("run.yaml")
    file.write_text(f"model: {model}\ntrain:\n  learning_rate: 1e-3\n  {train}\n{line}\n")
    with pytest.raises(TrainwrightError) as caught:
        prepared(RunConfig.load(file).resolved())
    assert type(caught.value) is kind
    return str(caught.value)


@pytest.mark.parametrize(
    ("model", "train", "line", "message"),
    [
        (TOY, "tokens: 50", "", "run.yaml:4: train.tokens: this trainable counts samples; give train.samples"),
        (TOY, "steps: 1", "  target: unigram_entropy", "run.yaml:5: train.target: 'unigram_entropy' is not known"),
        (TOY, "seconds: 5", "schedule: {kind: cosine}", "run.yaml:5: schedule.kind: 'cosine' needs a known number of"),
        (ENDLESS, "epochs: 2", "", "run.yaml:4: train.epochs: these data have no end"),
        (ENDLESS, "steps: 2", "validate: {every: 1 epoch}", "run.yaml:5: validate.every: 1 epochs cannot be counted"),
        (ENDLESS, "steps: 2", "checkpoint: {every: 2 epochs}", "run.yaml:5: checkpoint.every: 2 epochs cannot be"),
        (ENDLESS, "steps: 2", "checkpoint: {keep_every: 2 epochs}", "run.yaml:5: checkpoint.keep_every: 2 epochs"),
        (TOY, "steps: 2", "validate: {metric: los}", "run.yaml:5: validate.metric: 'los' is not measured; known"),
        (TOY, "steps: 2", "contract: pretrain", "run.yaml:5: contract: pretrain: is no file and no shipped contract"),
        (TOY, "steps: 2", "contract: ''", "run.yaml:5: contract: : is no file and no shipped contract"),
        ("{type: lmm}", "steps: 2", "", "run.yaml:1: model.type: unknown model type 'lmm'; did you mean 'lm'?"),
        ("{type: 'no_such:Model'}", "steps: 2", "", "run.yaml:1: model.type: model type 'no_such:Model': there is no"),
        ("{type: tests.toys:Tony}", "steps: 2", "", "run.yaml:1: model.type: model type 'tests.toys:Tony': "),
        ("{type: tests.models.test_build:WithoutBuild}", "steps: 2", "", "run.yaml:1: model.type: model type "),
        ("{type: tests.models.test_build:WithABadMetric}", "steps: 2", "", "run.yaml:1: model.type: model type "),
        ("{type: tests.models.test_build:Unfinished}", "steps: 2", "", "run.yaml:1: model: tests.models.test_build:U"),
        ("{type: tests.toys:Toy, hiden: 9}", "steps: 2", "", "run.yaml:1: unknown key 'model.hiden'; did you mean "),
        (LM, "steps: 2", "data: {path: whole}", "run.yaml:1: model.vocabulary_size: the data's vocabulary has 10"),
        (LM, "steps: 2", "data: {paht: whole}", "run.yaml:5: key 'data.path' is missing"),
    ],
)
def test_what_does_not_fit_model_or_data_is_told_with_file_line_and_key(
    model: str, train: str, line: str, message: str
) -> None:
    found = refusal(InputError, model, train, line)
    assert found.startswith(message)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{path: /no/such/folder}", "/no/such/folder: there is no such folder; make it with: trainwright data prepare"),
        ("{path: nothing}", "nothing: holds neither manifest.json nor *.bin shards"),
        ("{path: odd}", "odd/train.bin: has 5 bytes, expected a multiple of 4"),
        ("{path: whole, vocabulary_size: 9}", "whole/train.bin: holds token 9 when read as uint32"),
        ("{path: short}", "short: train.bin: 10 tokens give 1 windows of 8 + 1 tokens, one batch needs 8"),
        ("{path: no-validation}", "no-validation: holds no validation data; add a file whose name holds val"),
    ],
)
def test_data_that_cannot_be_trained_on_are_told_with_file_line_and_key(data: str, message: str) -> None:
    found = refusal(DataError, LM.replace("9", "10"), "steps: 2", f"data: {data}")
    assert found.startswith(f"run.yaml:5: data.path: {message}")


def test_a_mapping_and_an_argument_are_named_in_place_of_a_file() -> None:
    given = {"model": {"type": "tests.toys:Toy"}, "train": {"tokens": 5, "learning_rate": 1.0}}
    with pytest.raises(InputError, match=r"^run config: train\.tokens: this trainable counts samples"):
        prepared(RunConfig.parse(given))
    told = re.escape("argument 'model.type=lmm': model.type: unknown model type 'lmm'")
    with pytest.raises(InputError, match=f"^{told}"):
        prepared(RunConfig.parse(given, ["model.type=lmm"]))


def test_an_error_in_the_contract_itself_is_told_with_its_own_file_and_line() -> None:
    Path("own.yaml").write_text("id: own\nversion: one\n")
    with pytest.raises(InputError, match=r"^own\.yaml:2: version: expected a version of three numbers"):
        contract_named_by(RunConfig.parse({**LEAST, "contract": "own.yaml"}))


def test_without_a_contract_there_is_none() -> None:
    assert contract_named_by(RunConfig.parse(LEAST)) is None
