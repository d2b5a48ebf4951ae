from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from torch.nn import functional as F  # noqa: N812  torch's own convention
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from tests import texts
from tests.texts import TINY_LM, build
from trainwright.errors import InputError
from trainwright.models import huggingface
from trainwright.models.decoder import Decoder, Shape
from trainwright.models.lm import LM, LMOptions

SHAPES = [
    Shape(2, 32, 4, 4, 48, 16, 61),
    Shape(2, 32, 4, 2, 48, 16, 61),
    Shape(3, 48, 6, 1, 80, 24, 97),
    Shape(1, 64, 2, 2, 200, 33, 128),
]


@pytest.mark.parametrize("tied", [True, False])
def test_the_operations_of_a_token_are_those_that_torch_counts_less_what_the_causal_mask_hides(
    tmp_path: Path, tied: bool
) -> None:
    trainable = build(texts.tokens(tmp_path), TINY_LM.model_copy(update={"kv_heads": 4, "tied": tied}))
    assert isinstance(trainable, LM)
    batch = trainable.next_batch()
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        loss, tokens = trainable.compute_loss(trainable.forward(batch), batch)
        trainable.backward(loss)
    shape = trainable.decoder.shape
    hidden = 6 * shape.layers * shape.width * shape.context
    assert counter.get_total_flops() == tokens * (trainable.flops_per_item + hidden)


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
