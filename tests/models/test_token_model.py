"""What language models have in common: their data, loss, validation and baselines, whatever the decoder."""

import json
import math
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812  torch's own convention

from tests import texts
from tests.texts import KINDS, TINY_LM, TINY_MAMBA2, VOCABULARY, build
from trainwright.candidates import update
from trainwright.data.prepare import PrepareRequest, prepare
from trainwright.data.windows import TokenBatch
from trainwright.errors import DataError, InputError
from trainwright.models.token_model import DataOptions, TokenModelOptions
from trainwright.optimizers import OptimizerSettings

UNIFORM = math.log(VOCABULARY)


@pytest.fixture(params=[TINY_LM, TINY_MAMBA2], ids=["lm", "mamba2"])
def tiny(request: pytest.FixtureRequest) -> TokenModelOptions:
    options: TokenModelOptions = request.param
    return options


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return texts.tokens(tmp_path)


# -- shapes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "preset"), [(kind, name) for kind in KINDS for name in kind.presets])
def test_a_preset_has_as_many_parameters_as_its_name_says(options: type[TokenModelOptions], preset: str) -> None:
    with torch.device("meta"):
        decoder = KINDS[options].decoder_class(options(preset=preset).shape())
    count = sum(parameter.numel() for parameter in decoder.parameters()) / 1e6
    assert count == pytest.approx(float(preset.removesuffix("m")), rel=0.03)


def test_data_with_a_larger_vocabulary_than_the_model_are_refused(folder: Path, tiny: TokenModelOptions) -> None:
    with pytest.raises(InputError, match=r"data's vocabulary has 61 tokens, model\.vocabulary_size is 60"):
        build(folder, tiny.model_copy(update={"vocabulary_size": 60}))


def test_the_vocabulary_is_the_datas_unless_given(folder: Path, tiny: TokenModelOptions) -> None:
    for given, used in ((None, 61), (64, 64)):
        made = build(folder, tiny.model_copy(update={"vocabulary_size": given}))
        assert made.decoder.shape.vocabulary_size == used


def test_the_architecture_rebuilds_the_same_tensors_or_says_what_it_cannot(
    folder: Path, tiny: TokenModelOptions
) -> None:
    made = build(folder, tiny)
    stamp = json.loads(json.dumps(made.architecture))
    constants = dict(made.constants)
    assert stamp == {"type": made.model_type, **constants, **asdict(made.decoder.shape)}
    assert made.rebuilt(stamp).shape == made.decoder.shape
    last, constant = fields(made.shape_class)[-1].name, next(iter(constants))
    with pytest.raises(InputError, match=rf"cannot build its architecture: {constant} 0\.1, {last}"):
        made.rebuilt({**{key: value for key, value in stamp.items() if key != last}, constant: 0.1})


# -- learning --------------------------------------------------------------------------------------------------------


def test_one_batch_is_learnt_by_heart(folder: Path, tiny: TokenModelOptions) -> None:
    made = build(folder, tiny, optimizer=OptimizerSettings(learning_rate=3e-2, weight_decay=0.0))
    batch = made.next_batch()
    losses = [update(made, batch) for _ in range(40)]
    assert losses[-1] < 0.1


def test_the_first_loss_is_near_the_uniform_entropy(folder: Path, tiny: TokenModelOptions) -> None:
    made = build(folder, tiny)
    counts = np.bincount(np.fromfile(folder / "val.bin", "<u2"))
    shares = counts[counts > 0] / counts.sum()
    assert made.baselines["uniform_entropy"] == UNIFORM
    assert made.baselines["unigram_entropy"] == pytest.approx(-(shares * np.log(shares)).sum())
    assert update(made) == pytest.approx(UNIFORM, abs=0.2)


def test_the_validation_tokens_are_counted_once_for_the_baselines(folder: Path) -> None:
    made = build(folder, TINY_LM)
    assert made.baselines is made.baselines
    assert "baselines" not in made.state_dict()


def test_bf16_trains_and_its_loss_is_near_fp32(folder: Path, tiny: TokenModelOptions) -> None:
    losses = {}
    for precision in ("fp32", "bf16"):
        made = build(folder, tiny, precision=precision)
        losses[precision] = [update(made) for _ in range(3)]
    assert losses["bf16"] == pytest.approx(losses["fp32"], abs=0.02)
    assert losses["bf16"] != losses["fp32"]


def test_validation_is_the_mean_over_all_windows_and_its_error_is_over_sequences(
    folder: Path, tiny: TokenModelOptions
) -> None:
    made = build(folder, tiny)
    batches = list(made.source.validation_batches())
    joined = TokenBatch(torch.cat([b.inputs_bt for b in batches]), torch.cat([b.targets_bt for b in batches]))
    with torch.no_grad():
        logits_btv = made.forward(joined)
    losses_b = F.cross_entropy(logits_btv.transpose(1, 2), joined.targets_bt, reduction="none").mean(1)
    validation = made.validate()
    assert (validation.metric, validation.n) == ("val_loss", 16 * len(losses_b))
    assert validation.value == pytest.approx(losses_b.mean().item(), abs=1e-5)
    assert validation.standard_error == pytest.approx(losses_b.std().item() / len(losses_b) ** 0.5, rel=1e-3)
    assert made.validation_metric.direction == "min"


# -- data ------------------------------------------------------------------------------------------------------------


def test_a_folder_without_validation_data_is_refused_with_what_to_do(folder: Path) -> None:
    (folder / "val.bin").unlink()
    with pytest.raises(DataError, match=rf"{folder}: holds no validation data; add a file whose name holds val"):
        build(folder, TINY_LM)


@pytest.mark.parametrize("name", ["train-00000.bin", "validation-00000.bin"])
def test_one_changed_byte_of_prepared_data_is_found_before_step_0_unless_it_is_not_asked_for(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text("abcd" * 500)
    prepared = tmp_path / "out"
    prepare(PrepareRequest(input=tmp_path / "text.txt", out=prepared, tokenizer="characters", split="tail"))
    whole = build(prepared, TINY_LM)
    _change_a_byte(prepared / name)
    with pytest.raises(DataError, match=rf"{name}: is damaged") as caught:
        build(prepared, TINY_LM)
    assert (caught.value.exit_code, caught.value.config_key) == (6, "data.path")
    unverified = DataOptions(path=prepared, verify=False)
    assert build(prepared, TINY_LM, data=unverified).data_hashes == whole.data_hashes, "as declared"


def _change_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
