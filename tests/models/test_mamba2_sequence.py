"""Mamba-2 over labelled sequences: it learns toys, reads no further than a sequence's end, and tells in right units."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.labelled import file_of_counts, file_of_waves, values, waves
from trainwright import runs, yamlfile
from trainwright.candidates import Candidate
from trainwright.config import RunConfig
from trainwright.errors import InputError
from trainwright.models.build import build
from trainwright.models.mamba2_sequence import Mamba2Sequence, Mamba2SequenceOptions, SequenceDataOptions
from trainwright.models.starting import starting_file
from trainwright.promises import check

CPU = torch.device("cpu")


def made(path: Path, **changes: Any) -> Mamba2Sequence:
    built = build(RunConfig.parse(values(path, **changes)).resolved(), CPU)
    assert isinstance(built, Mamba2Sequence)
    return built


def test_the_speed_of_an_irregular_wave_is_told_in_19_of_20_cases(tmp_path: Path) -> None:
    config = values(file_of_waves(tmp_path), train__steps=250, train__target=0.95, model__layers=2)
    result = runs.execute(RunConfig.parse(config), runs_dir=tmp_path / "runs")
    assert result.outcome.label == "done", result.why
    last = result.run.read_validations()[-1]
    assert (last.metric, last.n) == ("val_accuracy", 200)
    assert last.measures["cross_entropy"] is not None
    assert last.measures["cross_entropy"] < 0.4


def test_tokens_are_counted_each_target_in_its_own_unit(tmp_path: Path) -> None:
    regression = {"model__task": "regression", "train__steps": 300, "train__target": 0.05}
    config = values(file_of_counts(tmp_path), **regression)
    result = runs.execute(RunConfig.parse(config), runs_dir=tmp_path / "runs")
    assert result.outcome.label == "done", result.why
    first, last = (result.run.read_validations()[index] for index in (0, -1))
    assert first.value is not None
    assert 0.5 < first.value < 2.0, "in units of the training variance nothing learnt is about 1"
    assert last.measures["mae"] is not None
    assert last.measures["mae"] < 200, "the larger target counts thousands"


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_the_last_position_of_a_sequence_counts_and_what_stands_after_it_does_not(pooling: str, tmp_path: Path) -> None:
    trainable = made(file_of_waves(tmp_path), model__pooling=pooling)
    batch = trainable.next_batch()
    changed = batch.x.clone()
    for row, length in zip(changed, batch.lengths_b.tolist(), strict=True):
        row[length:] = 99.0
    assert not torch.equal(changed, batch.x)
    told, again = trainable.forward(batch), trainable.forward(batch._replace(x=changed))
    torch.testing.assert_close(again, told, rtol=0, atol=1e-6)
    for row, length in zip(batch.x, batch.lengths_b.tolist(), strict=True):
        row[length - 1] += 3.0
    assert ((trainable.forward(batch) - told).abs().amax(1) > 1e-4).all()


def test_moments_are_those_of_training_positions_that_count(tmp_path: Path) -> None:
    trainable = made(file_of_waves(tmp_path))
    x, _, lengths = waves(600, 1)
    rows = np.concatenate([row[:length] for row, length in zip(x, lengths, strict=True)]).astype(np.float32)
    assert trainable.data_size.held_bytes == 800 * (24 * 2 * 4 + 8 + 8), "reals, lengths, classes"
    assert trainable.net.moments is not None
    np.testing.assert_allclose(trainable.net.moments.mean, rows.mean(0), rtol=1e-5)
    np.testing.assert_allclose(trainable.net.moments.variance, rows.var(0), rtol=1e-5)


def test_the_baselines_know_nothing_of_a_sequence(tmp_path: Path) -> None:
    _, kinds, _ = waves(600, 1)
    _, held_out, _ = waves(200, 2)
    share = (held_out == np.bincount(kinds).argmax()).mean()
    shares = (np.bincount(kinds) + 1) / 603
    entropy = -np.log(shares)[held_out].mean()
    told = made(file_of_waves(tmp_path)).baselines
    assert told == {"majority_accuracy": pytest.approx(share), "class_entropy": pytest.approx(entropy)}
    told = made(file_of_counts(tmp_path), model__task="regression").baselines
    assert told == {"mean_mse": pytest.approx(1.0, abs=0.2)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__classes": 2}, r"model\.classes: 2 are too few: the data have 3"),
        ({"model__head_width": 7}, "model.head_width 7"),
        ({"model__task": "clustering"}, "classification"),
        ({"train__batch_size": 601}, r"data\.path: .*600 training sequences are fewer than a batch of 601"),
    ],
)
def test_options_that_do_not_fit_are_refused_by_their_key(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match=message):
        made(file_of_waves(tmp_path), **changes)


def test_too_few_tokens_are_refused_and_more_than_the_data_have_are_not(tmp_path: Path) -> None:
    counts = file_of_counts(tmp_path)
    with pytest.raises(InputError, match=r"model\.vocabulary_size: 7 are too few: the data have 8"):
        made(counts, model__task="regression", model__vocabulary_size=7)
    assert made(counts, model__task="regression", model__vocabulary_size=9).architecture["vocabulary_size"] == 9


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_it_keeps_every_promise_of_a_trainable(task: str, tmp_path: Path) -> None:
    path = file_of_waves(tmp_path) if task == "classification" else file_of_counts(tmp_path)
    found = check(Candidate(RunConfig.parse(values(path, model__task=task, train__steps=8)), CPU))
    broken = {promise.name: promise.seen for promise in found.promises if promise.result != "holds"}
    assert broken == ({} if torch.cuda.is_available() else {"cuda": "no CUDA device"})


def test_the_starting_file_shows_every_key() -> None:
    data = yamlfile.parse(starting_file("mamba2_sequence"), "mamba2_sequence.yaml").data
    assert set(Mamba2SequenceOptions.model_fields) == set(data["model"])
    assert set(SequenceDataOptions.model_fields) == set(data["data"])
