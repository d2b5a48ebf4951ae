import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save
from torch.nn import functional as F  # noqa: N812  torch's own convention
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from trainwright import rng
from trainwright.data.prepare import PrepareRequest, prepare
from trainwright.data.windows import TokenBatch
from trainwright.errors import DataError, InputError
from trainwright.models import huggingface
from trainwright.models.decoder import Decoder, Shape
from trainwright.models.lm import LM, PRESETS, DataOptions, LMOptions
from trainwright.optimizers import OptimizerSettings
from trainwright.state import State
from trainwright.trainable import Setup

TINY = LMOptions(layers=2, width=32, heads=4, kv_heads=2, mlp_width=48, context=16, vocabulary_size=61)
SHAPES = [
    Shape(2, 32, 4, 4, 48, 16, 61),
    Shape(2, 32, 4, 2, 48, 16, 61),
    Shape(3, 48, 6, 1, 80, 24, 97),
    Shape(1, 64, 2, 2, 200, 33, 128),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    drawn = np.random.default_rng(0).integers(61, size=2_000).astype("<u2")
    (tmp_path / "train.bin").write_bytes(drawn[:1_500].tobytes())
    (tmp_path / "val.bin").write_bytes(drawn[1_500:].tobytes())
    return tmp_path


def build(folder: Path, model: LMOptions = TINY, **setup: object) -> LM:
    data = DataOptions(path=folder, dtype="uint16")
    return LM.build(Setup(**{"model": model, "data": data, "batch_size": 4, **setup}))  # type: ignore[arg-type]  # values of several types


def train(trainable: LM, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        batch = trainable.next_batch()
        trainable.zero_grad()
        loss, _ = trainable.compute_loss(trainable.forward(batch), batch)
        trainable.backward(loss)
        trainable.clip_gradients(1.0)
        trainable.optimizer_step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("tied", [True, False])
def test_the_operations_of_a_token_are_those_that_torch_counts_less_what_the_causal_mask_hides(
    folder: Path, tied: bool
) -> None:
    trainable = build(folder, TINY.model_copy(update={"kv_heads": 4, "tied": tied}))
    batch = trainable.next_batch()
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        loss, tokens = trainable.compute_loss(trainable.forward(batch), batch)
        trainable.backward(loss)
    shape = trainable.decoder.shape
    hidden = 6 * shape.layers * shape.width * shape.context
    assert counter.get_total_flops() == tokens * (trainable.flops_per_item + hidden)


def serialized(state: State) -> bytes:
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    rest = {name: value for name, value in state.items() if name not in tensors}
    return save(tensors) + json.dumps(rest).encode()


def oracle_of(decoder: Decoder) -> LlamaForCausalLM:
    oracle = LlamaForCausalLM(LlamaConfig(**huggingface.configuration(decoder.shape)))
    loaded = oracle.load_state_dict(huggingface.weights(decoder), strict=False)
    assert not loaded.unexpected_keys
    assert loaded.missing_keys == (["lm_head.weight"] if decoder.shape.tied else [])
    oracle.tie_weights()
    return oracle


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_and_every_gradient_equal_those_of_transformers(shape: Shape, tied: bool) -> None:
    torch.manual_seed(1)
    decoder = Decoder(replace(shape, tied=tied))
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)  # away from the initial values, norms included
    oracle = oracle_of(decoder)
    tokens = torch.randint(shape.vocabulary_size, (3, shape.context + 1))
    inputs_bt, targets_bt = tokens[:, :-1], tokens[:, 1:]
    logits_btv, expected_btv = decoder(inputs_bt), oracle(input_ids=inputs_bt).logits
    torch.testing.assert_close(logits_btv, expected_btv, rtol=0, atol=1e-5)
    for each_btv in (logits_btv, expected_btv):
        loss = F.cross_entropy(each_btv.flatten(0, 1), targets_bt.flatten())
        loss.backward()  # type: ignore[no-untyped-call]  # untyped in torch
    expected = dict(oracle.named_parameters())
    assert len(expected) == len(list(decoder.parameters()))
    for name, parameter in decoder.named_parameters():
        gradient = expected[name if name.startswith("lm_head") else f"model.{name}"].grad
        torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("name", "layers", "count"), [("370m", 25, 372_641_792), ("370m", 24, 359_794_688)])
def test_the_370m_preset_has_the_published_number_of_parameters(name: str, layers: int, count: int) -> None:
    with torch.device("meta"):
        decoder = Decoder(LMOptions(preset=name, layers=layers).shape(50_257))
    assert sum(parameter.numel() for parameter in decoder.parameters()) == count


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_as_many_parameters_as_its_name_says(name: str) -> None:
    with torch.device("meta"):
        decoder = Decoder(LMOptions(preset=name).shape())
    count = sum(parameter.numel() for parameter in decoder.parameters()) / 1e6
    assert count == pytest.approx(float(name.removesuffix("m")), rel=0.03)


def test_a_given_value_wins_over_the_preset() -> None:
    shape = LMOptions(preset="4.3m", layers=2, heads=8, tied=False).shape(100)
    assert shape == Shape(2, 256, 8, 8, 704, 128, 100, tied=False)


def test_without_a_preset_the_mlp_is_eight_thirds_of_the_width() -> None:
    assert LMOptions(layers=1, width=128, heads=2, context=8).shape(10) == Shape(1, 128, 2, 2, 344, 8, 10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "124"}, "unknown preset '124'; did you mean '124m'?"),
        ({"preset": "4.3M"}, "unknown preset '4.3M'; did you mean '4.3m'?"),
        ({"preset": "gigantic"}, "known presets: 0.8m, 4.3m"),
        ({"layers": 2, "heads": 2}, "give width, context, or a preset: 0.8m"),
        ({"preset": "4.3m", "width": 100, "heads": 3}, "width 100 does not split into 3 heads of even width"),
        ({"preset": "4.3m", "kv_heads": 3}, "heads 4 is no multiple of model.kv_heads 3"),
        ({"preset": "4.3m", "layer": 2}, "Extra inputs are not permitted"),
        ({"preset": "4.3m", "layers": 0}, "greater than or equal to 1"),
    ],
)
def test_wrong_options_are_refused_with_what_to_do(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError) as raised:
        LMOptions.model_validate(options)
    assert message in str(raised.value)


def test_data_with_a_larger_vocabulary_than_the_model_are_refused(folder: Path) -> None:
    with pytest.raises(InputError, match=r"data's vocabulary has 61 tokens, model\.vocabulary_size is 60"):
        build(folder, TINY.model_copy(update={"vocabulary_size": 60}))


def test_the_vocabulary_is_the_datas_unless_given(folder: Path) -> None:
    assert build(folder, TINY.model_copy(update={"vocabulary_size": None})).decoder.shape.vocabulary_size == 61
    assert build(folder, TINY.model_copy(update={"vocabulary_size": 64})).decoder.shape.vocabulary_size == 64


def test_a_tied_head_is_one_parameter() -> None:
    names = set(Decoder(SHAPES[0]).state_dict())
    assert set(Decoder(replace(SHAPES[0], tied=False)).state_dict()) - names == {"lm_head.weight"}
    assert not [name for name in names if "head" in name or "cos" in name]


def test_initial_weights_have_the_stated_deviations() -> None:
    torch.manual_seed(0)
    weights = Decoder(Shape(8, 128, 4, 4, 344, 16, 1_000)).state_dict()
    for name, tensor in weights.items():
        if tensor.dim() == 2:
            expected = 0.02 / 4 if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02
            assert tensor.std().item() == pytest.approx(expected, rel=0.05), name


def test_a_later_token_changes_no_earlier_logit() -> None:
    torch.manual_seed(0)
    decoder = Decoder(SHAPES[1])
    tokens_bt = torch.randint(61, (1, 16))
    changed_bt = tokens_bt.clone()
    changed_bt[0, 9] = (changed_bt[0, 9] + 1) % 61
    before_btv, after_btv = decoder(tokens_bt), decoder(changed_bt)
    assert torch.equal(before_btv[:, :9], after_btv[:, :9])
    assert not torch.equal(before_btv[:, 9:], after_btv[:, 9:])


def test_more_tokens_than_the_context_are_refused() -> None:
    with pytest.raises(InputError, match="17 tokens were given to a model with a context of 16"):
        Decoder(SHAPES[0])(torch.zeros(1, 17, dtype=torch.int64))


def test_one_batch_is_learnt_by_heart(folder: Path) -> None:
    trainable = build(folder, optimizer=OptimizerSettings(learning_rate=1e-2, weight_decay=0.0))
    batch = trainable.next_batch()
    for _ in range(100):
        trainable.zero_grad()
        loss, weight = trainable.compute_loss(trainable.forward(batch), batch)
        trainable.backward(loss)
        trainable.clip_gradients(1.0)
        trainable.optimizer_step()
    assert weight == 4 * 16
    assert loss.item() < 0.05


def test_the_first_loss_is_near_the_uniform_entropy(folder: Path) -> None:
    trainable = build(folder)
    counts = np.bincount(np.fromfile(folder / "val.bin", "<u2"))
    shares = counts[counts > 0] / counts.sum()
    assert trainable.baselines["uniform_entropy"] == math.log(61)
    assert trainable.baselines["unigram_entropy"] == pytest.approx(-(shares * np.log(shares)).sum())
    assert train(trainable, 1)[0] == pytest.approx(math.log(61), abs=0.1)


def test_the_validation_tokens_are_counted_once_for_the_baselines(folder: Path) -> None:
    trainable = build(folder)
    assert trainable.baselines is trainable.baselines
    assert "baselines" not in trainable.state_dict()


def test_a_folder_without_validation_data_is_refused_with_what_to_do(folder: Path) -> None:
    (folder / "val.bin").unlink()
    with pytest.raises(DataError, match=rf"{folder}: holds no validation data; add a file whose name holds val"):
        build(folder)


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text("abcd" * 500)
    out = tmp_path / "out"
    prepare(PrepareRequest(input=tmp_path / "text.txt", out=out, tokenizer="characters", split="tail"))
    return out


def change_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["train-00000.bin", "validation-00000.bin"])
def test_one_changed_byte_of_prepared_data_is_found_before_step_0_unless_it_is_not_asked_for(
    prepared: Path, name: str
) -> None:
    whole = build(prepared)
    change_a_byte(prepared / name)
    with pytest.raises(DataError, match=rf"{name}: is damaged") as caught:
        build(prepared)
    assert (caught.value.exit_code, caught.value.config_key) == (6, "data.path")
    unverified = DataOptions(path=prepared, verify=False)
    assert build(prepared, data=unverified).data_hashes == whole.data_hashes, "as declared"


def test_validation_is_the_mean_over_all_windows_and_its_error_is_over_sequences(folder: Path) -> None:
    trainable = build(folder)
    batches = list(trainable.source.validation_batches())
    joined = TokenBatch(torch.cat([b.inputs_bt for b in batches]), torch.cat([b.targets_bt for b in batches]))
    with torch.no_grad():
        logits_btv = trainable.forward(joined)
    losses_b = F.cross_entropy(logits_btv.transpose(1, 2), joined.targets_bt, reduction="none").mean(1)
    validation = trainable.validate()
    assert (validation.metric, validation.n) == ("val_loss", 16 * len(losses_b))
    assert validation.value == pytest.approx(losses_b.mean().item(), abs=1e-5)
    assert validation.standard_error == pytest.approx(losses_b.std().item() / len(losses_b) ** 0.5, rel=1e-3)
    assert trainable.validation_metric.direction == "min"


def test_validation_changes_no_weight_mode_random_stream_or_position(folder: Path) -> None:
    trainable = build(folder)
    train(trainable, 2)
    before, streams = serialized(trainable.save_checkpoint()), serialized(rng.capture(trainable.device))
    trainable.validate()
    assert trainable.training
    assert serialized(trainable.save_checkpoint()) == before
    assert serialized(rng.capture(trainable.device)) == streams


def test_save_load_save_gives_the_same_bytes_and_the_same_next_steps(folder: Path) -> None:
    trainable = build(folder)
    train(trainable, 3)
    saved = {
        name: value.clone() if isinstance(value, torch.Tensor) else value
        for name, value in trainable.save_checkpoint().items()
    }
    other = build(folder)
    train(other, 1)
    other.load_checkpoint(saved)
    assert serialized(other.save_checkpoint()) == serialized(saved)
    assert train(other, 3) == train(trainable, 3)
    assert serialized(other.save_checkpoint()) == serialized(trainable.save_checkpoint())


def test_every_tensor_is_on_the_device_that_was_asked_for(folder: Path) -> None:
    settings = OptimizerSettings(implementation="foreach")
    trainable = build(folder, device=torch.device("meta"), optimizer=settings)
    batch = trainable.next_batch()
    loss, _ = trainable.compute_loss(trainable.forward(batch), batch)
    trainable.backward(loss)
    trainable.optimizer_step()
    moments = [entries[name] for entries in trainable.optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    tensors = [*trainable.parameters(), *trainable.buffers(), *moments, *batch, loss]
    assert {tensor.device.type for tensor in tensors} == {"meta"}


def test_bf16_trains_and_its_loss_is_near_fp32(folder: Path) -> None:
    losses = {precision: train(build(folder, precision=precision), 3) for precision in ("fp32", "bf16")}
    assert losses["bf16"] == pytest.approx(losses["fp32"], abs=0.02)
    assert losses["bf16"] != losses["fp32"]


def test_the_architecture_rebuilds_the_same_tensors(folder: Path) -> None:
    trainable = build(folder)
    stamp = json.loads(json.dumps(trainable.architecture))
    assert stamp.pop("type") == "lm"
    assert (stamp.pop("rms_eps"), stamp.pop("rope_theta")) == (1e-6, 10_000.0)
    assert Shape(**stamp) == trainable.decoder.shape
