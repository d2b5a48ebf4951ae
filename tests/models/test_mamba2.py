import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch.nn import functional as F  # noqa: N812  torch's own convention
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, Mamba2Config, Mamba2ForCausalLM

from tests import texts
from tests.acceptance import harness
from tests.texts import TINY_MAMBA2, build
from trainwright import exports, runs
from trainwright.config import RunConfig
from trainwright.models import huggingface
from trainwright.models.generate import generate
from trainwright.models.mamba2 import Mamba2, Mamba2Options
from trainwright.models.state_space import A_RANGE, DT_RANGE, Mamba2Decoder, Mixer, Shape
from trainwright.rundir import all_runs

SHAPES = [
    Shape(2, 32, 16, 8, 16, 61, chunk=16),
    Shape(2, 32, 8, 16, 19, 61, groups=2, chunk=8),
    Shape(1, 24, 12, 4, 33, 97, expand=3, groups=6, conv_width=2, chunk=4),
    Shape(1, 64, 32, 16, 21, 128, conv_width=3, chunk=64),
]


def stirred(shape: Shape) -> Mamba2Decoder:
    """Give a decoder away from its initial values, norms and D included."""
    torch.manual_seed(1)
    decoder = Mamba2Decoder(shape)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return decoder


def oracle_of(decoder: Mamba2Decoder) -> Mamba2ForCausalLM:
    oracle = Mamba2ForCausalLM(Mamba2Config(**huggingface.configuration(decoder.shape)))
    loaded = oracle.load_state_dict(huggingface.weights(decoder), strict=False)
    assert not loaded.unexpected_keys
    assert loaded.missing_keys == (["lm_head.weight"] if decoder.shape.tied else [])
    oracle.tie_weights()
    oracle.train()
    return oracle


# -- the net -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_and_every_gradient_equal_those_of_transformers(shape: Shape, tied: bool) -> None:
    decoder = stirred(replace(shape, tied=tied))
    oracle = oracle_of(decoder)
    tokens = torch.randint(shape.vocabulary_size, (3, shape.context + 1))
    inputs_bt, targets_bt = tokens[:, :-1], tokens[:, 1:]
    logits_btv, expected_btv = decoder(inputs_bt), oracle(input_ids=inputs_bt, use_cache=False).logits
    torch.testing.assert_close(logits_btv, expected_btv, rtol=0, atol=1e-5)
    for each_btv in (logits_btv, expected_btv):
        F.cross_entropy(each_btv.flatten(0, 1), targets_bt.flatten()).backward()  # type: ignore[no-untyped-call]  # untyped in torch
    expected = dict(oracle.named_parameters())
    assert len(expected) == len(list(decoder.parameters()))
    for name, parameter in decoder.named_parameters():
        gradient = expected[name if name.startswith("lm_head") else f"backbone.{name}"].grad
        torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=1e-5)


def test_chunks_of_every_size_give_the_same_logits() -> None:
    decoder = stirred(SHAPES[1])
    tokens_bt = torch.randint(61, (2, 19))
    expected_btv = decoder(tokens_bt)
    for chunk in (1, 2, 5, 19, 64):
        other = Mamba2Decoder(replace(SHAPES[1], chunk=chunk))
        other.load_state_dict(decoder.state_dict())
        torch.testing.assert_close(other(tokens_bt), expected_btv, rtol=0, atol=1e-5)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(SHAPES), st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_a_text_read_in_parts_gives_the_logits_of_the_whole(shape: Shape, parts: list[int]) -> None:
    decoder = stirred(shape)
    tokens_bt = torch.randint(shape.vocabulary_size, (2, sum(parts)))
    memories, read = None, []
    with torch.no_grad():
        for part_bt in torch.split(tokens_bt, parts, dim=1):
            x_btd, memories = decoder.read(part_bt, memories)
            read.append(decoder.predict(x_btd))
        torch.testing.assert_close(torch.cat(read, 1), decoder(tokens_bt), rtol=0, atol=1e-5)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(SHAPES), st.integers(2, 40), st.data())
def test_a_later_token_changes_no_earlier_logit(shape: Shape, length: int, data: Any) -> None:
    place = data.draw(st.integers(1, length - 1))
    decoder = stirred(shape)
    tokens_bt = torch.randint(shape.vocabulary_size, (1, length))
    changed_bt = tokens_bt.clone()
    changed_bt[0, place] = (changed_bt[0, place] + 1) % shape.vocabulary_size
    before_btv, after_btv = decoder(tokens_bt), decoder(changed_bt)
    torch.testing.assert_close(before_btv[:, :place], after_btv[:, :place], rtol=0, atol=1e-6)
    assert (before_btv[:, place] - after_btv[:, place]).abs().max() > 1e-4


def test_generation_by_the_recurrence_takes_the_likeliest_tokens_of_the_full_forward() -> None:
    decoder = stirred(SHAPES[0])
    ids = generate(decoder, [1, 2, 3], max_new_tokens=24, temperature=0)
    text = [1, 2, 3]
    for token in ids:
        assert token == int(decoder(torch.tensor([text]))[0, -1].argmax())
        text.append(token)
    assert len(ids) == 24, "past the context of training, too"


def test_initial_weights_are_drawn_as_stated() -> None:
    torch.manual_seed(0)
    shape = Shape(4, 128, 2, 16, 16, 1_000)
    decoder = Mamba2Decoder(shape)
    assert decoder.embeddings.weight.std().item() == pytest.approx(0.02, rel=0.05)
    for mixer in (module for module in decoder.modules() if isinstance(module, Mixer)):
        a_h, dt_h = mixer.A_log.exp(), F.softplus(mixer.dt_bias)
        for values, (low, high) in ((a_h, A_RANGE), (dt_h, DT_RANGE)):
            assert low * (1 - 1e-4) <= values.min() < 2 * low
            assert high / 2 < values.max() <= high * (1 + 1e-4)
        assert dt_h.log().mean().item() == pytest.approx(math.log(0.01), abs=0.5)
        assert mixer.in_proj.weight.abs().max().item() == pytest.approx(128**-0.5, rel=0.01)
        assert mixer.out_proj.weight.abs().max().item() == pytest.approx(256**-0.5 / 2, rel=0.01)
        assert bool((mixer.D == 1).all())


# -- shapes and options --------------------------------------------------------------------------------------------


def test_the_370m_preset_has_368_314_880_parameters() -> None:
    with torch.device("meta"):
        decoder = Mamba2Decoder(Mamba2Options(preset="370m").shape(50_257))
    assert sum(parameter.numel() for parameter in decoder.parameters()) == 368_314_880


def test_a_given_value_wins_over_the_preset_and_the_rest_has_defaults() -> None:
    shape = Mamba2Options(preset="3.2m", layers=2, groups=2, tied=False).shape(100)
    assert shape == Shape(2, 256, 64, 64, 128, 100, groups=2, tied=False)
    assert TINY_MAMBA2.shape(61) == Shape(2, 32, 8, 8, 16, 61, expand=2, groups=1, conv_width=4, chunk=8, tied=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "3.2M"}, "unknown preset '3.2M'; did you mean '3.2m'?"),
        ({"layers": 2, "width": 8}, "give head_width, state_size, context, or a preset: 0.54m"),
        ({"preset": "3.2m", "head_width": 48}, "width 256 × model.expand 2 does not split into heads of model.head_wi"),
        ({"preset": "3.2m", "groups": 3}, "the 8 heads are no multiple of model.groups 3"),
        ({"preset": "3.2m", "layer": 2}, "Extra inputs are not permitted"),
        ({"preset": "3.2m", "chunk": 0}, "greater than or equal to 1"),
    ],
)
def test_wrong_options_are_refused_with_what_to_do(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Mamba2Options.model_validate(options)
    assert message in str(raised.value)


# -- the trainable -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("context", [64, 16, 3])
def test_the_operations_of_a_token_are_no_more_than_those_that_torch_counts(
    tmp_path: Path, tied: bool, context: int
) -> None:
    trainable = build(texts.tokens(tmp_path), TINY_MAMBA2.model_copy(update={"tied": tied, "context": context}))
    assert isinstance(trainable, Mamba2)
    batch = trainable.next_batch()
    with FlopCounterMode(display=False) as counter:
        loss, tokens = trainable.compute_loss(trainable.forward(batch), batch)
        trainable.backward(loss)
    shape = trainable.decoder.shape
    convolved = 6 * shape.layers * shape.conv_width * shape.channels  # products that torch's counter does not know
    counted = counter.get_total_flops() / tokens + convolved
    assert 0.5 * counted < trainable.flops_per_item <= counted


# -- through the loop ----------------------------------------------------------------------------------------------


def configuration(folder: Path, **changes: Any) -> dict[str, Any]:
    model = {"type": "mamba2", "layers": 2, "width": 32, "head_width": 16, "state_size": 8, "context": 16, "chunk": 8}
    return harness.language_model(harness.token_shards(folder / "shards"), name="mamba2", model=model, **changes)


def test_a_run_passes_every_gate_of_the_contract_and_its_export_gives_the_same_logits(tmp_path: Path) -> None:
    values = configuration(tmp_path, contract="training-loop-pretrain-v1", train__learning_rate=3e-2)
    result = runs.execute(RunConfig.parse(values), runs_dir=tmp_path / "runs")
    verdicts = {verdict.gate: verdict.result for verdict in result.verdicts}
    of_pairs = {"GATE-TRAIN-006", "GATE-TRAIN-RESUME", "GATE-TRAIN-ACCUMULATE", "GATE-TRAIN-DRIFT"}  # not of one run
    assert {gate for gate, result in verdicts.items() if result == "no_evidence"} == of_pairs
    assert "fail" not in verdicts.values()
    assert result.exit_code == 0
    (run,) = all_runs(tmp_path / "runs")
    exports.export(run, tmp_path / "hf", kind="hf")
    tokens_bt = torch.arange(20)[None]
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")(tokens_bt).logits
    torch.testing.assert_close(exports.load_decoder(run).decoder(tokens_bt), theirs, rtol=0, atol=1e-5)
