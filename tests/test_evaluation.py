"""What is neither agent nor forecaster is evaluated by what its run held out, or by other data that are given."""

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.acceptance import harness
from trainwright import runs
from trainwright.config import RunConfig
from trainwright.data import shards
from trainwright.data.prepare import PrepareRequest, prepare
from trainwright.errors import DataError, InputError
from trainwright.evaluation import HeldOutEvaluation, evaluate
from trainwright.jsonfile import read_json
from trainwright.metrics import ValidationRow
from trainwright.runs import RunResult

LM = {"type": "lm", "layers": 1, "width": 16, "heads": 2, "context": 32}
MAMBA2 = {"type": "mamba2", "layers": 1, "width": 16, "head_width": 8, "state_size": 8, "chunk": 16, "context": 32}
SEQUENCES = {"type": "mamba2_sequence", "layers": 1, "width": 16, "head_width": 16, "state_size": 8, "chunk": 8}


def trained(runs_dir: Path, **changes: Any) -> RunResult:
    values = harness.config(**{"train__steps": 20, "validate": {"every": 10}, **changes})
    return runs.execute(RunConfig.parse(values), runs_dir=runs_dir)


def evaluated(result: RunResult, **options: Any) -> HeldOutEvaluation:
    with harness.left_as_it_was(result.run.path):
        found = evaluate(result.run, **options)
    assert isinstance(found, HeldOutEvaluation)
    return found


def refused(result: RunResult, **options: Any) -> str:
    with pytest.raises((InputError, DataError)) as error:
        evaluate(result.run, **options)
    return str(error.value)


def best_of(result: RunResult) -> ValidationRow:
    return min(result.run.read_validations(), key=lambda row: row.value or 0.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    for number in range(40):
        (folder / f"{number}.py").write_text("".join(f"x{line} = {line * number} # über\n" for line in range(30)))
    prepare(PrepareRequest(folder, folder / "own", vocabulary_size=300))
    prepare(PrepareRequest(folder, folder / "other", tokenizer=folder / "own" / shards.TOKENIZER, share=0.4))
    prepare(PrepareRequest(folder, folder / "foreign", vocabulary_size=280))
    return folder


@pytest.fixture(scope="module", params=[LM, MAMBA2], ids=["lm", "mamba2"])
def language_model(request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    limited = {"every": 10, "batches": 1}
    return trained(
        tmp_path_factory.mktemp("runs"), model=request.param, data={"path": str(data / "own")}, validate=limited
    )


def test_a_language_model_is_held_against_all_tokens_that_its_run_held_out(
    language_model: RunResult, data: Path
) -> None:
    found = evaluated(language_model)
    held_out = shards.load(data / "own").validation.values()
    validation = language_model.run.read_validations()[-1]
    assert validation.n is not None
    assert found.n == sum(len(part) - 1 for part in held_out) > validation.n, "validation saw one batch"
    assert (found.metric, found.unit, found.items, found.data) == ("val_loss", "nats", "tokens", None)
    assert found.measures["perplexity"] == pytest.approx(math.exp(found.value))
    assert found.baselines == read_json(language_model.run.environment)["baselines"]
    assert 0 < (found.measures["bits_per_byte"] or 0.0) < found.value / math.log(2), "a token is more than a byte"
    assert found.chose_checkpoint
    assert not evaluated(language_model, choice="last").chose_checkpoint


def test_an_evaluation_of_all_that_validation_saw_is_the_validation(data: Path, tmp_path: Path) -> None:
    """One shard of 32 · n + 1 tokens has no window that is shorter than the context."""
    folder = Path(shutil.copytree(data / "own", tmp_path / "plain"))
    (folder / shards.MANIFEST).unlink()
    [shard] = folder.glob("val*.bin")
    shard.write_bytes(shard.read_bytes()[: (32 * 16 + 1) * 2])
    result = trained(tmp_path, model=LM, data={"path": str(folder), "dtype": "uint16"})
    found = evaluated(result)
    best = best_of(result)
    assert (found.checkpoint, found.n) == (best.checkpoint, best.n)
    assert found.value == pytest.approx(best.value, rel=1e-6)
    assert found.standard_error == pytest.approx(best.standard_error, rel=1e-5)
    assert found.measures["bits_per_byte"] is None, "a folder without a tokenizer tells no bytes"
    assert "prepare it with the run's" in refused(result, data=data / "other")


def test_a_language_model_is_shown_beside_its_baselines_and_told_what_chose_it(
    language_model: RunResult, tmp_path: Path
) -> None:
    found = evaluated(language_model)
    shown = harness.command(tmp_path, "evaluate", language_model.run.path).out.splitlines()
    value = f"val_loss {found.value:.4f} ± {found.standard_error:.4f} nats over {found.n:,} tokens"
    assert shown[0] == f"{value} that the run held out"
    rows = dict(line.split() for line in shown[2:6])
    assert list(rows) == ["perplexity", "bits_per_byte", "unigram_entropy", "uniform_entropy"]
    assert rows["uniform_entropy"] == f"{math.log(300):.4f}"
    assert shown[-2:] == [
        "these tokens chose the checkpoint, so it may do worse on others",
        f"checkpoint {found.checkpoint} of {found.run}",
    ]


def test_other_shards_of_the_same_tokenizer_are_told_whole_and_no_others(
    language_model: RunResult, data: Path, tmp_path: Path
) -> None:
    found = evaluated(language_model, data=data / "other")
    other = shards.load(data / "other")
    assert found.n == sum(len(part) - 1 for part in [*other.train.values(), *other.validation.values()])
    assert (found.data, found.chose_checkpoint) == (str(data / "other"), False)
    shown = harness.command(tmp_path, "evaluate", language_model.run.path, "--data", data / "other").out
    assert "these are other data than the run's own, by their hash" in shown
    assert "the run's own tokenizer" in refused(language_model, data=data / "foreign")
    assert "there is no such folder" in refused(language_model, data=tmp_path / "none")
    assert "a language model plays no episodes" in refused(language_model, episodes=3)


def test_a_language_model_is_not_evaluated_on_data_that_are_not_those_of_its_run(data: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(data / "own", tmp_path / "copy"))
    result = trained(tmp_path, model=LM, data={"path": str(folder)})
    shutil.rmtree(folder)
    shutil.copytree(data / "other", folder)
    assert "the data are not those of the run" in refused(result)
    shutil.rmtree(folder)
    assert evaluated(result, data=data / "other").n, "without the run's own data"


# -- sequences -------------------------------------------------------------------------------------------------------


def sequences(count: int, seed: int, highest: int = 8) -> tuple[Any, Any]:
    x = np.random.default_rng(seed).integers(0, highest, (count, 12))
    return x, (x == 0).sum(1)


@pytest.fixture(scope="module", params=["classification", "regression"])
def of_sequences(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    folder = tmp_path_factory.mktemp("sequences")
    (x, y), (x_validation, y_validation) = sequences(400, 1), sequences(150, 2)
    np.savez(folder / "own.npz", x=x, y=y, x_validation=x_validation, y_validation=y_validation)
    model = {**SEQUENCES, "task": request.param, **({"classes": 13} if request.param == "classification" else {})}
    limited = {"every": 10, "batches": 1}
    return trained(folder, model=model, data={"path": str(folder / "own.npz")}, validate=limited)


def test_sequences_are_judged_all_of_them_beside_their_baselines(of_sequences: RunResult) -> None:
    found = evaluated(of_sequences)
    assert (found.n, found.items, of_sequences.run.read_validations()[-1].n) == (150, "sequences", 32)
    assert found.chose_checkpoint
    assert list(found.measures) in (["cross_entropy"], ["mae"])
    assert found.baselines == read_json(of_sequences.run.environment)["baselines"]


def test_other_sequences_are_judged_in_the_run_s_own_units(of_sequences: RunResult, tmp_path: Path) -> None:
    (x, y), path = sequences(150, 2), tmp_path / "same.npz"
    np.savez(path, x=x, y=y)
    own, found = evaluated(of_sequences), evaluated(of_sequences, data=path)
    assert (found.data, found.chose_checkpoint) == (str(path), False)
    same = ("value", "measures", "baselines", "n")
    assert [getattr(found, name) for name in same] == [getattr(own, name) for name in same], "but for the file's name"
    assert found.is_other is None
    shown = harness.command(tmp_path, "evaluate", of_sequences.run.path, "--data", path).out
    assert "whether the run was trained on any of these sequences was not looked at" in shown
    longer = tmp_path / "longer.npz"
    np.savez(longer, x=np.zeros((7, 40), np.int64), y=np.ones(7, np.int64), lengths=np.arange(1, 8))
    assert evaluated(of_sequences, data=longer).n == 7


def test_other_sequences_of_another_kind_are_refused(of_sequences: RunResult, tmp_path: Path) -> None:
    x, y = sequences(20, 3)
    for changes, message in (
        ({"x_validation": x}, "expected x, y, and no others but lengths"),
        ({"x": x[..., None].astype(float)}, "a sequence is of 1 reals a position"),
        ({"x": x + 8}, "holds token 15; expected 0 … 7"),
    ):
        np.savez(tmp_path / "bad.npz", **{"x": x, "y": y, **changes})
        assert message in refused(of_sequences, data=tmp_path / "bad.npz")
    assert "there is no such file" in refused(of_sequences, data=tmp_path / "none.npz")


# -- a user's own ----------------------------------------------------------------------------------------------------


def test_a_model_of_ones_own_is_evaluated_by_its_own_validation(tmp_path: Path) -> None:
    result = trained(tmp_path)
    best, found = best_of(result), evaluated(result)
    assert (found.value, found.n, found.items) == (best.value, best.n, "samples")
    assert found.chose_checkpoint
    assert "is evaluated by the data of its run alone" in refused(result, data=tmp_path)
    assert "plays no episodes; leave --episodes and --seed out" in refused(result, seed=1)
