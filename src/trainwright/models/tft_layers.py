"""The parts of the Temporal Fusion Transformer (Lim et al. 2021), by the paper's equations.

Features come before places: a layer is one product of its weight with all of them, and what is done to each number, or
over the few features of a place, runs along the places, which are many.
Shapes in names: t steps, h of them that ask, b windows, l places (steps × windows, or windows), m variables, d width,
i inputs, o outputs, k heads, w width of a head, n windows × heads.
"""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  torch's own convention

from trainwright.data.series import Variable

NORM_EPS: Final = 1e-5
DRAWS: Final = 2**16  # that a number of dropout is drawn from


@final
class Dropout(nn.Module):
    """Zeroes a share of numbers in training and scales the rest, in place, by sixteen random bits each.

    The share is rounded to 1/65,536. Four numbers take one draw of 64 bits: on a CPU, a draw for each of them costs
    more than the layer that is dropped from.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.dropped = round(share * DRAWS)

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and self.dropped):
            return x
        draws = torch.empty(x.numel() // 4 + 1, dtype=torch.int64, device=x.device).random_(-(2**63), None)
        kept = draws.view(torch.int16)[: x.numel()].view(x.shape) >= self.dropped - DRAWS // 2
        return x.mul_(kept.to(x.dtype).mul_(DRAWS / (DRAWS - self.dropped)))


class _Gated(torch.autograd.Function):
    """The first half of x's features times the sigmoid of the second, without autograd's copy that joins the halves."""

    @staticmethod
    def forward(ctx: Any, x_dl: Tensor) -> Tensor:
        value_ol, gate_ol = x_dl.chunk(2, -2)
        open_ol = gate_ol.sigmoid()
        ctx.save_for_backward(open_ol, value_ol)
        return open_ol * value_ol

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gradient_ol,), (open_ol, value_ol) = gradients, ctx.saved_tensors
        *leading, outputs, places = gradient_ol.shape
        gradient_dl = gradient_ol.new_empty(*leading, 2 * outputs, places)
        of_value_ol, of_gate_ol = gradient_dl.chunk(2, -2)
        torch.mul(gradient_ol, open_ol, out=of_value_ol)
        torch.mul(of_value_ol, value_ol, out=of_gate_ol)
        of_gate_ol.addcmul_(of_gate_ol, open_ol, value=-1)
        return gradient_dl


def gated(x_dl: Tensor) -> Tensor:
    """Give values, the first half of the features, times the sigmoid of their gates, the second half."""
    gated_ol: Tensor = _Gated.apply(x_dl)  # type: ignore[no-untyped-call]  # untyped in torch
    return gated_ol


class _Normed(torch.autograd.Function):
    """(x - mean) / deviation over the last dimension but one; the gradient in closed form halves the time."""

    @staticmethod
    def forward(ctx: Any, x_dl: Tensor) -> Tensor:
        centred_dl = x_dl - x_dl.mean(-2, keepdim=True)
        inverse_1l = centred_dl.square().mean(-2, keepdim=True).add_(NORM_EPS).rsqrt_()
        normed_dl = centred_dl.mul_(inverse_1l)
        ctx.save_for_backward(normed_dl, inverse_1l)
        return normed_dl

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gradient_dl,), (normed_dl, inverse_1l) = gradients, ctx.saved_tensors
        along_1l = (gradient_dl * normed_dl).mean(-2, keepdim=True)
        centred_dl = gradient_dl - gradient_dl.mean(-2, keepdim=True)
        return centred_dl.addcmul_(normed_dl, along_1l, value=-1).mul_(inverse_1l)


@final
class FeatureNorm(nn.Module):
    """Layer normalization (Ba et al. 2016) over the features of each place; each of m variables has its own gain."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(sizes)), nn.Parameter(torch.zeros(sizes))

    def forward(self, x_dl: Tensor) -> Tensor:
        """Give the norm of x_dl, or of x_mdl."""
        normed_dl = _Normed.apply(x_dl.float())  # type: ignore[no-untyped-call]  # untyped in torch
        return torch.addcmul(self.bias[..., None], normed_dl, self.weight[..., None])


@final
class Linear(nn.Linear):
    """A linear layer over the first dimension; drawn at first as torch draws its own."""

    def forward(self, x_il: Tensor) -> Tensor:
        """Give outputs_ol."""
        return self.weight @ x_il if self.bias is None else torch.addmm(self.bias[:, None], self.weight, x_il)


@final
class GatedSkip(nn.Module):
    """A gate over what is added, and the norm of the sum: LayerNorm(skip + GLU(x)), equations 5, 17, 20 and 22."""

    def __init__(self, inputs: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.values_and_gates = Linear(inputs, 2 * outputs)
        self.norm = FeatureNorm(outputs)

    def forward(self, x_il: Tensor, skip_ol: Tensor) -> Tensor:
        """Give the norm_ol of the sum; x_il is dropped from in place."""
        normed_ol: Tensor = self.norm(gated(self.values_and_gates(self.dropout(x_il))).add_(skip_ol))
        return normed_ol


@final
class GatedResidual(nn.Module):
    """The gated residual network, equations 2 to 4, with an optional context that adds to its first layer.

    The equations add the input to an output of its own width. Where the two differ, a linear map stands between them,
    as in the authors' code. `context`: its width; None: there is none.
    """

    def __init__(self, inputs: int, width: int, outputs: int, *, context: int | None, dropout: float) -> None:
        super().__init__()
        self.first = Linear(inputs, width)
        self.context = None if context is None else Linear(context, width, bias=False)
        self.second = Linear(width, width)
        self.skip = nn.Identity() if inputs == outputs else Linear(inputs, outputs)
        self.gated = GatedSkip(width, outputs, dropout)

    def forward(self, x_il: Tensor, context_cb: Tensor | None = None) -> Tensor:
        """Give outputs_ol; the context is that of each window, at all of its steps."""
        hidden_dl = self.first(x_il)
        if self.context is not None:
            context_db = self.context(context_cb)
            hidden_dl = (hidden_dl.view(len(hidden_dl), -1, context_db.shape[1]) + context_db[:, None]).flatten(1)
        output_ol: Tensor = self.gated(self.second(F.elu_(hidden_dl)), self.skip(x_il))
        return output_ol


@final
class StackedLinear(nn.Module):
    """A linear layer for each of m variables, in one batched product; drawn at first as torch draws its own."""

    def __init__(self, count: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight_moi = nn.Parameter(torch.empty(count, outputs, inputs).uniform_(-bound, bound))
        self.bias_mo1 = nn.Parameter(torch.empty(count, outputs, 1).uniform_(-bound, bound))

    def forward(self, x_mil: Tensor) -> Tensor:
        """Give outputs_mol."""
        return torch.baddbmm(self.bias_mo1, self.weight_moi, x_mil)


@final
class StackedGatedResiduals(nn.Module):
    """A gated residual network of its own for each of m variables, without contexts, in batched products."""

    def __init__(self, count: int, width: int, dropout: float) -> None:
        super().__init__()
        self.first, self.second = (StackedLinear(count, width, width) for _ in range(2))
        self.values_and_gates = StackedLinear(count, width, 2 * width)
        self.dropout = Dropout(dropout)
        self.norm = FeatureNorm(count, width)

    def forward(self, x_mdl: Tensor) -> Tensor:
        """Give outputs_mdl."""
        dropped_mdl = self.dropout(self.second(F.elu_(self.first(x_mdl))))
        normed_mdl: Tensor = self.norm(gated(self.values_and_gates(dropped_mdl)).add_(x_mdl))
        return normed_mdl


@final
class Embedding(nn.Module):
    """Vectors of width d for m variables: a linear map for each that is real, a table for each that is a category."""

    offsets_m1: Tensor

    def __init__(self, variables: Sequence[Variable], width: int) -> None:
        super().__init__()
        sizes = [variable.categories for variable in variables if variable.categories is not None]
        reals = len(variables) - len(sizes)
        self.weight_md1 = nn.Parameter(torch.empty(reals, width, 1).uniform_(-1, 1)) if reals else None
        self.bias_md1 = nn.Parameter(torch.empty(reals, width, 1).uniform_(-1, 1)) if reals else None
        self.table = nn.Embedding(sum(sizes), width) if sizes else None  # of all variables, one after the other
        self.register_buffer("offsets_m1", torch.tensor([0, *accumulate(sizes)][:-1])[:, None], persistent=False)

    def forward(self, reals_ml: Tensor, codes_ml: Tensor) -> Tensor:
        """Give vectors_mdl, the reals' before the categories'."""
        parts = []
        if self.weight_md1 is not None and self.bias_md1 is not None:
            parts.append(torch.addcmul(self.bias_md1, reals_ml[:, None], self.weight_md1))
        if self.table is not None:
            parts.append(self.table(codes_ml + self.offsets_m1).mT)
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class Selected(NamedTuple):
    """What a selection gives: one vector of width d, and the share that each variable has in it."""

    vector_dl: Tensor
    shares_ml: Tensor


@final
class VariableSelection(nn.Module):
    """A weighted sum over variables, each through a network of its own, equations 6 to 8; of one variable all is taken.

    `context`: the width of a context that the shares depend on; None: there is none.
    """

    def __init__(self, count: int, width: int, *, context: int | None, dropout: float) -> None:
        super().__init__()
        self.networks = StackedGatedResiduals(count, width, dropout)
        self.weigh = None
        if count > 1:
            self.weigh = GatedResidual(count * width, width, count, context=context, dropout=dropout)

    def forward(self, vectors_mdl: Tensor, context_cb: Tensor | None = None) -> Selected:
        """Give what is selected of vectors_mdl; the context is that of each window, at all of its steps."""
        processed_mdl = self.networks(vectors_mdl)
        if self.weigh is None:
            return Selected(processed_mdl[0], torch.ones_like(vectors_mdl[:, 0]))
        shares_ml = self.weigh(vectors_mdl.flatten(0, 1), context_cb).softmax(0)
        return Selected((processed_mdl * shares_ml[:, None]).sum(0), shares_ml)


class _MeanAttention(torch.autograd.Function):
    """Values mixed by the mean of the heads' attentions, and that mean.

    All heads have the gradient of their mean. So it needs no copy for each of them, as it would have in autograd.
    """

    @staticmethod
    def forward(
        ctx: Any, query_nwh: Tensor, key_nwt: Tensor, value_bwt: Tensor, bias_1ht: Tensor
    ) -> tuple[Tensor, Tensor]:
        horizon = bias_1ht.shape[1]
        scores_nht = query_nwh.mT @ key_nwt
        scores_nht[..., -horizon:] += bias_1ht[..., -horizon:]
        attention_nht = scores_nht.softmax(-1)
        attention_bkht = attention_nht.view(len(value_bwt), -1, *attention_nht.shape[1:])
        attention_bht = attention_bkht.mean(1)
        ctx.save_for_backward(query_nwh, key_nwt, value_bwt, attention_bkht, attention_bht)
        return value_bwt @ attention_bht.mT, attention_bht

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query_nwh, key_nwt, value_bwt, attention_bkht, attention_bht = ctx.saved_tensors
        mixed_bwh, mean_bht = (gradient.contiguous() for gradient in gradients)
        each_b1ht = torch.baddbmm(mean_bht, mixed_bwh.mT, value_bwt)[:, None] / attention_bkht.shape[1]
        along_bkht = attention_bkht * each_b1ht
        scores_bkht = along_bkht.addcmul_(attention_bkht, along_bkht.sum(-1, keepdim=True), value=-1)
        scores_nht = scores_bkht.flatten(0, 1)
        return key_nwt @ scores_nht.mT, query_nwh @ scores_nht, mixed_bwh @ attention_bht, None


@final
class InterpretableAttention(nn.Module):
    """Attention of k heads over one set of values, equations 13 to 16: where they look on the mean can be read."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query = Linear(width, width)
        self.key = Linear(width, width)
        self.value = Linear(width, width // heads)
        self.output = Linear(width // heads, width, bias=False)
        self.dropout = Dropout(dropout)

    def forward(self, asking_dl: Tensor, asked_dl: Tensor, bias_1ht: Tensor) -> tuple[Tensor, Tensor]:
        """Give the output_dl and the heads' mean attention (b, h, t); -inf in `bias_1ht` hides one of the last h."""
        _, horizon, steps = bias_1ht.shape
        scale = 1 / math.sqrt(self.query.out_features // self.heads)
        query_nwh = self._split(self.query(asking_dl) * scale, self.heads, horizon)
        key_nwt = self._split(self.key(asked_dl), self.heads, steps)
        value_bwt = self._split(self.value(asked_dl), 1, steps)
        mixed_bwh, attention_bht = _MeanAttention.apply(  # type: ignore[no-untyped-call]  # untyped in torch
            query_nwh, key_nwt, value_bwt, bias_1ht
        )
        return self.dropout(self.output(mixed_bwh.permute(1, 2, 0).flatten(1))), attention_bht

    @staticmethod
    def _split(x_dl: Tensor, heads: int, steps: int) -> Tensor:
        """Give x_nwt: what each head of each window has of x."""
        x_bdt = x_dl.reshape(len(x_dl), steps, -1).permute(2, 0, 1).contiguous()
        return x_bdt.view(-1, len(x_dl) // heads, steps)
