"""Parts of the Temporal Fusion Transformer beside those of pytorch-forecasting: equal weights, outputs and gradients.

Theirs differs from the paper in two places, where its parts are replaced here. The input of a gated residual network
whose output has another width is interpolated and normed; the linear map of the authors' code stands there. A step of
the horizon does not attend to itself; here it does.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor, nn

from trainwright.data.series import Inputs, Variable, Window
from trainwright.models.forecast_scores import quantile_losses
from trainwright.models.tft_layers import (
    Embedding,
    GatedResidual,
    GatedSkip,
    InterpretableAttention,
    Linear,
    StackedGatedResiduals,
    StackedLinear,
    VariableSelection,
)
from trainwright.models.tft_network import (
    EncoderDecoder,
    Shape,
    Static,
    StaticEncoder,
    TemporalFusionTransformer,
    hiding,
)

pytest.importorskip("pytorch_forecasting", reason="pytorch-forecasting is not installed; the extra `bench` has it")

from pytorch_forecasting.metrics import QuantileLoss
from pytorch_forecasting.models import TemporalFusionTransformer as TheirTransformer
from pytorch_forecasting.models.nn.rnn import LSTM
from pytorch_forecasting.models.temporal_fusion_transformer import sub_modules as theirs

TOLERANCE = 1e-5
WIDTH, HEADS, CONTEXT, HORIZON, WINDOWS = 4, 2, 7, 3, 5
STEPS = CONTEXT + HORIZON
QUANTILES = [0.1, 0.5, 0.9]
NAMES = {kind: [f"{kind}{index}" for index in range(5)] for kind in ("static", "known")}

Of: TypeAlias = Callable[[Any], Tensor]  # of a parameter: its values, or its gradient
Pairs: TypeAlias = Iterator[tuple[Tensor, Tensor]]  # ours and theirs, in one shape


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def values(parameter: Tensor) -> Tensor:
    return parameter.detach()


def gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


# -- which weight of ours is which of theirs -------------------------------------------------------------------------


def linear(our: Any, their: Any, of: Of) -> Pairs:
    yield of(our.weight), of(their.weight)
    if our.bias is not None:
        yield of(our.bias), of(their.bias)


def gated(our: GatedSkip, glu: Any, norm: Any, of: Of) -> Pairs:
    yield from linear(our.values_and_gates, glu.fc, of)
    yield from linear(our.norm, norm, of)


def gate_add_norm(our: GatedSkip, their: Any, of: Of) -> Pairs:
    return gated(our, their.glu, their.add_norm.norm, of)


def residual(our: GatedResidual, their: Any, of: Of) -> Pairs:
    yield from linear(our.first, their.fc1, of)
    yield from linear(our.second, their.fc2, of)
    if our.context is not None:
        yield from linear(our.context, their.context, of)
    if isinstance(our.skip, Linear):
        yield from linear(our.skip, their.resample_norm, of)
    yield from gate_add_norm(our.gated, their.gate_norm, of)


def stacked_linear(our: StackedLinear, index: int, weight: Tensor, bias: Tensor, of: Of) -> Pairs:
    yield of(our.weight_moi)[index], weight
    yield of(our.bias_mo1)[index, :, 0], bias


def stacked(our: StackedGatedResiduals, each: Sequence[Any], of: Of) -> Pairs:
    for index, their in enumerate(each):
        glu, norm = their.gate_norm.glu.fc, their.gate_norm.add_norm.norm
        yield from stacked_linear(our.first, index, of(their.fc1.weight), of(their.fc1.bias), of)
        yield from stacked_linear(our.second, index, of(their.fc2.weight), of(their.fc2.bias), of)
        yield from stacked_linear(our.values_and_gates, index, of(glu.weight), of(glu.bias), of)
        yield of(our.norm.weight)[index], of(norm.weight)
        yield of(our.norm.bias)[index], of(norm.bias)


def selection(our: VariableSelection, their: Any, of: Of) -> Pairs:
    assert our.weigh is not None
    yield from stacked(our.networks, list(their.single_variable_grns.values()), of)
    yield from residual(our.weigh, their.flattened_grn, of)


def embedding(our: Embedding, each: Sequence[Any], of: Of) -> Pairs:
    for index, their in enumerate(each):
        yield of(our.weight_md1)[index, :, 0], of(their.weight)[:, 0]
        yield of(our.bias_md1)[index, :, 0], of(their.bias)


def attention(our: InterpretableAttention, their: Any, of: Of) -> Pairs:
    for layer, heads in ((our.query, their.q_layers), (our.key, their.k_layers)):
        for weight, bias, head in zip(of(layer.weight).chunk(HEADS), of(layer.bias).chunk(HEADS), heads, strict=True):
            yield from ((weight, of(head.weight)), (bias, of(head.bias)))
    yield from linear(our.value, their.v_layer, of)
    yield from linear(our.output, their.w_h, of)


def recurrence(our: EncoderDecoder, their: Any, of: Of) -> Pairs:
    """`their`: a module with the names of the parts that their transformer has."""
    for ours_lstm, their_lstm in ((our.encoder, their.lstm_encoder), (our.decoder, their.lstm_decoder)):
        parameters = dict(their_lstm.named_parameters())
        yield from ((of(parameter), of(parameters[name])) for name, parameter in ours_lstm.named_parameters())
    yield from gated(our.gated, their.post_lstm_gate_encoder, their.post_lstm_add_norm_encoder.norm, of)


def whole(our: TemporalFusionTransformer, their: Any, of: Of) -> Pairs:
    assert isinstance(our.static, StaticEncoder)
    yield from embedding(our.static.embedding, [their.prescalers[name] for name in NAMES["static"]], of)
    yield from selection(our.static.selection, their.static_variable_selection, of)
    contexts = ("variable_selection", "enrichment", "initial_hidden_lstm", "initial_cell_lstm")
    yield from stacked(our.static.contexts, [getattr(their, f"static_context_{name}") for name in contexts], of)
    yield from embedding(our.known, [their.prescalers[name] for name in NAMES["known"]], of)
    yield from embedding(our.observed, [their.prescalers["target"]], of)
    yield from selection(our.past, their.encoder_variable_selection, of)
    yield from selection(our.future, their.decoder_variable_selection, of)
    yield from recurrence(our.recurrence, their, of)
    yield from residual(our.enrichment, their.static_enrichment, of)
    yield from attention(our.attention, their.multihead_attn, of)
    yield from gate_add_norm(our.attended, their.post_attn_gate_norm, of)
    yield from residual(our.feed_forward, their.pos_wise_ff, of)
    yield from gate_add_norm(our.last, their.pre_output_gate_norm, of)
    yield from linear(our.head, their.output_layer, of)


# -- the comparison --------------------------------------------------------------------------------------------------


@torch.no_grad()
def share(our: nn.Module, their: nn.Module, pairs: Callable[[Of], Pairs]) -> None:
    """Take every weight away from its first value, and give theirs the values of ours, all of them."""
    for parameter in our.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.3)
    copied = 0
    for ours, other in pairs(values):
        other.copy_(ours)
        copied += ours.numel()
    assert copied == sum(parameter.numel() for parameter in our.parameters())
    assert copied == sum(parameter.numel() for parameter in their.parameters())


def assert_equal(
    outputs: Sequence[tuple[Tensor, Tensor]], inputs: Sequence[Tensor], pairs: Callable[[Of], Pairs]
) -> None:
    """Compare outputs, then the gradients of all inputs and all weights for a random loss, a mean over windows."""
    gradients = [torch.randn_like(ours) / WINDOWS for ours, _ in outputs]
    found = []
    for side in zip(*outputs, strict=True):
        torch.autograd.backward(side, gradients)
        found.append([gradient(each).clone() for each in inputs])
        for each in inputs:
            each.grad = None
    for ours, other in (*outputs, *zip(*found, strict=True), *pairs(gradient)):
        torch.testing.assert_close(ours, other, rtol=0, atol=TOLERANCE)


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def windows_first(x_dtb: Tensor) -> Tensor:
    return x_dtb.permute(2, 1, 0)


def with_linear_skip(their: Any) -> Any:
    """Replace the interpolation of a network whose output is of another width than its input."""
    their.resample_norm = nn.Linear(their.input_size, their.output_size)
    return their


@pytest.mark.parametrize("context", [None, 6])
def test_the_gated_residual_network_equals_theirs(context: int | None) -> None:
    our = GatedResidual(WIDTH, 8, WIDTH, context=context, dropout=0.0)
    their = theirs.GatedResidualNetwork(WIDTH, 8, WIDTH, dropout=0.0, context_size=context)
    share(our, their, lambda of: residual(our, their, of))
    x_dl, context_cb = drawn(WIDTH, STEPS * WINDOWS), None if context is None else drawn(context, WINDOWS)
    inputs = [x_dl] if context_cb is None else [x_dl, context_cb]
    at_all_steps_lc = None if context_cb is None else context_cb.mT.repeat(STEPS, 1)
    outputs = [(our(x_dl, context_cb), their(x_dl.mT, at_all_steps_lc).mT)]
    assert_equal(outputs, inputs, lambda of: residual(our, their, of))


def test_stacked_gated_residual_networks_equal_as_many_of_theirs() -> None:
    our = StackedGatedResiduals(3, WIDTH, 0.0)
    their = nn.ModuleList(theirs.GatedResidualNetwork(WIDTH, WIDTH, WIDTH, dropout=0.0) for _ in range(3))
    share(our, their, lambda of: stacked(our, list(their), of))
    x_mdl = drawn(3, WIDTH, WINDOWS)
    expected_mdl = torch.stack([each(x_dl.mT).mT for each, x_dl in zip(their, x_mdl, strict=True)])
    assert_equal([(our(x_mdl), expected_mdl)], [x_mdl], lambda of: stacked(our, list(their), of))


def test_variable_selection_equals_theirs() -> None:
    names = [f"v{index}" for index in range(WIDTH + 1)]  # theirs is as narrow as its variables are many, where few
    our = VariableSelection(len(names), WIDTH, context=WIDTH, dropout=0.0)
    reals = Embedding([Variable(name) for name in names], WIDTH)
    their = theirs.VariableSelectionNetwork(dict.fromkeys(names, WIDTH), WIDTH, dropout=0.0, context_size=WIDTH)
    with_linear_skip(their.flattened_grn)
    both = nn.ModuleList([our, reals])

    def pairs(of: Of) -> Pairs:
        yield from selection(our, their, of)
        yield from embedding(reals, list(their.prescalers.values()), of)

    share(both, their, pairs)
    x_ml, context_db = drawn(len(names), STEPS * WINDOWS), drawn(WIDTH, WINDOWS)
    found = our(reals(x_ml, torch.zeros(0, STEPS * WINDOWS, dtype=torch.int64)), context_db)
    by_name = {name: x_l[:, None] for name, x_l in zip(names, x_ml, strict=True)}
    vector_ld, shares_l1m = their(by_name, context_db.mT.repeat(STEPS, 1))
    outputs = [(found.vector_dl, vector_ld.mT), (found.shares_ml, shares_l1m.squeeze(-2).mT)]
    assert_equal(outputs, [x_ml, context_db], pairs)


def test_interpretable_attention_equals_theirs() -> None:
    our = InterpretableAttention(WIDTH, HEADS, 0.0)
    their = theirs.InterpretableMultiHeadAttention(HEADS, WIDTH)
    share(our, their, lambda of: attention(our, their, of))
    asking_dhb, asked_dtb = drawn(WIDTH, HORIZON, WINDOWS), drawn(WIDTH, STEPS, WINDOWS)
    bias_1ht = hiding(CONTEXT, asked_dtb)
    output_dl, attention_bht = our(asking_dhb.flatten(1), asked_dtb.flatten(1), bias_1ht)
    asked_btd, hidden_bht = windows_first(asked_dtb), bias_1ht.isinf().expand(WINDOWS, -1, -1)
    output_bhd, attention_bhkt = their(windows_first(asking_dhb), asked_btd, asked_btd, hidden_bht)
    outputs = [(windows_first(output_dl.view_as(asking_dhb)), output_bhd), (attention_bht, attention_bhkt.mean(2))]
    assert_equal(outputs, [asking_dhb, asked_dtb], lambda of: attention(our, their, of))


class TheirRecurrence(nn.Module):
    """Their LSTMs, gate and norm, put together as in their transformer."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.lstm_encoder, self.lstm_decoder = (LSTM(WIDTH, WIDTH, layers, batch_first=True) for _ in range(2))
        self.post_lstm_gate_encoder = theirs.GatedLinearUnit(WIDTH, dropout=0.0)
        self.post_lstm_add_norm_encoder = theirs.AddNorm(WIDTH, trainable_add=False)

    def forward(self, past_bcd: Tensor, future_bhd: Tensor, hidden_bd: Tensor, cell_bd: Tensor) -> Tensor:
        layers, lengths = self.lstm_encoder.num_layers, torch.full((WINDOWS,), CONTEXT)
        begin = (hidden_bd.expand(layers, -1, -1), cell_bd.expand(layers, -1, -1))
        encoded_bcd, state = self.lstm_encoder(past_bcd, begin, lengths=lengths, enforce_sorted=False)
        decoded_bhd, _ = self.lstm_decoder(future_bhd, state)
        parts = ((encoded_bcd, past_bcd), (decoded_bhd, future_bhd))
        ends = [self.post_lstm_add_norm_encoder(self.post_lstm_gate_encoder(out), skip) for out, skip in parts]
        return torch.cat(ends, 1)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_step_of_encoder_and_decoder_equals_theirs(layers: int) -> None:
    our, their = EncoderDecoder(Shape(WIDTH, HEADS, layers, dropout=0.0)), TheirRecurrence(layers)
    share(our, their, lambda of: recurrence(our, their, of))
    past_dcb, future_dhb = drawn(WIDTH, CONTEXT, WINDOWS), drawn(WIDTH, HORIZON, WINDOWS)
    hidden_db, cell_db = drawn(WIDTH, WINDOWS), drawn(WIDTH, WINDOWS)
    found_dtb = our(past_dcb, future_dhb, Static(hidden_db=hidden_db, cell_db=cell_db))
    expected_btd = their(windows_first(past_dcb), windows_first(future_dhb), hidden_db.mT, cell_db.mT)
    inputs = [past_dcb, future_dhb, hidden_db, cell_db]
    assert_equal([(windows_first(found_dtb), expected_btd)], inputs, lambda of: recurrence(our, their, of))


def test_the_quantile_loss_is_half_of_theirs() -> None:
    predicted_bhq, target_bh = drawn(WINDOWS, HORIZON, 3), torch.randn(WINDOWS, HORIZON)
    loss_bhq = quantile_losses(predicted_bhq, target_bh, torch.tensor(QUANTILES))
    expected_bhq = QuantileLoss(QUANTILES).loss(predicted_bhq, target_bh)
    assert_equal([(loss_bhq, expected_bhq / 2)], [predicted_bhq], lambda _: iter(()))


# -- the whole -------------------------------------------------------------------------------------------------------


def their_transformer() -> Any:
    known, inputs = NAMES["known"], [*NAMES["static"], *NAMES["known"], "target"]
    their = TheirTransformer(
        hidden_size=WIDTH,
        hidden_continuous_size=WIDTH,
        attention_head_size=HEADS,
        dropout=0.0,
        output_size=len(QUANTILES),
        loss=QuantileLoss(QUANTILES),
        max_encoder_length=CONTEXT,
        static_reals=NAMES["static"],
        time_varying_reals_encoder=[*known, "target"],
        time_varying_reals_decoder=known,
        x_reals=inputs,
        x_categoricals=[],
        logging_metrics=nn.ModuleList(),
        output_transformer=lambda found: found["prediction"],
    )
    for part in (their.static_variable_selection, their.encoder_variable_selection, their.decoder_variable_selection):
        with_linear_skip(part.flattened_grn)
    hidden_bht = hiding(CONTEXT, torch.zeros(WIDTH, STEPS, WINDOWS)).isinf().expand(WINDOWS, -1, -1)
    their.get_attention_mask = lambda **_lengths: hidden_bht
    return their


@pytest.mark.filterwarnings(
    "ignore:Attribute .* is an instance of `nn.Module`"
)  # Lightning's advice on its own records
def test_the_whole_network_equals_theirs_with_both_replacements() -> None:
    static, known = (tuple(map(Variable, NAMES[kind])) for kind in ("static", "known"))
    inputs = Inputs(static, known, (Variable("target"),))
    our, their = (
        TemporalFusionTransformer(inputs, Shape(WIDTH, HEADS, dropout=0.0), len(QUANTILES)),
        their_transformer(),
    )
    share(our, their, lambda of: whole(our, their, of))
    static_bm, known_btm, past_bc1 = drawn(WINDOWS, 5), drawn(WINDOWS, STEPS, 5), drawn(WINDOWS, CONTEXT, 1)
    no_codes, future_bh = torch.zeros(WINDOWS, 0, dtype=torch.int64), torch.zeros(WINDOWS, HORIZON)
    none_bt = torch.zeros(WINDOWS, STEPS, 0, dtype=torch.int64)
    found = our(Window(static_bm, no_codes, known_btm, none_bt, past_bc1, none_bt[:, :CONTEXT], future_bh, future_bh))
    target_bt1 = torch.cat((past_bc1, future_bh[..., None]), 1)
    reals_btm = torch.cat((static_bm[:, None].expand(-1, STEPS, -1), known_btm, target_bt1), 2)
    expected = their(
        {
            "encoder_cat": none_bt[:, :CONTEXT],
            "decoder_cat": none_bt[:, CONTEXT:],
            "encoder_cont": reals_btm[:, :CONTEXT],
            "decoder_cont": reals_btm[:, CONTEXT:],
            "encoder_lengths": torch.full((WINDOWS,), CONTEXT),
            "decoder_lengths": torch.full((WINDOWS,), HORIZON),
            "target_scale": torch.tensor([[0.0, 1.0]]).expand(WINDOWS, 2),
        }
    )
    outputs = [
        (found.quantiles_bhq, expected["prediction"]),
        (found.past_bcm, expected["encoder_variables"].squeeze(-2)),
        (found.future_bhm, expected["decoder_variables"].squeeze(-2)),
    ]
    assert_equal(outputs, [static_bm, known_btm, past_bc1], lambda of: whole(our, their, of))
