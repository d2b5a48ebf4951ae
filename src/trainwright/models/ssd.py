"""The mixing of positions in Mamba-2 (Dao and Gu 2024, "Transformers are SSMs"), in the two forms that are dual.

A head's state h (p × n) follows h_t = exp(Δ_t·A)·h_(t−1) + Δ_t·x_t⊗B_t, and its output is y_t = h_t·C_t: equation 2
with a scalar A, discretised by Δ. `step` is this recurrence; `ssd` gives the same for many positions at once.

Shapes in names: b sequences, t positions, c chunks, q and s positions in a chunk (q reads what s wrote), h heads,
p width of a head, g groups of heads that share B and C, r heads of a group, n numbers of state for each p,
x the widths of all heads of a group side by side.
"""

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812  torch's own convention


def ssd(
    x_bthp: Tensor,
    dt_bth: Tensor,
    a_h: Tensor,
    b_btgn: Tensor,
    c_btgn: Tensor,
    *,
    chunk: int,
    state_bhpn: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Give y_bthp and the state after the last position: matrices within a chunk, the recurrence between chunks.

    The four parts of section 6 and listing 1: diagonal blocks, then the right, middle and left factors of the others.
    Any length will do: a last chunk is filled with Δ = 0, which adds nothing to a state and lets none decay. `dt_bth`
    is positive, `a_h` negative, both in fp32; `state_bhpn` is the state before the first position (None: zeros).
    """
    length = x_bthp.shape[1]
    chunk = min(chunk, length)
    if missing := -length % chunk:
        x_bthp, b_btgn, c_btgn = (F.pad(each, (0, 0, 0, 0, 0, missing)) for each in (x_bthp, b_btgn, c_btgn))
        dt_bth = F.pad(dt_bth, (0, 0, 0, missing))
    b_bcgsn, c_bcgqn = (torch.unflatten(each, 1, (-1, chunk)).transpose(2, 3) for each in (b_btgn, c_btgn))
    dt_bcsh = torch.unflatten(dt_bth, 1, (-1, chunk))
    sums_bchq = (dt_bcsh * a_h).transpose(2, 3).cumsum(3)  # of Δ·A since the chunk began
    input_bcshp = (torch.unflatten(x_bthp, 1, (-1, chunk)) * dt_bcsh[..., None]).to(x_bthp.dtype)

    y_bcqhp = _within_chunks(input_bcshp, sums_bchq, b_bcgsn, c_bcgqn)
    added_bchpn = _added_by_chunks(input_bcshp, sums_bchq, b_bcgsn)
    before_bchpn, state_bhpn = _carried(added_bchpn, sums_bchq[..., -1].exp(), state_bhpn)
    y_bcqhp = y_bcqhp + _read_from_before(before_bchpn, sums_bchq, c_bcgqn)
    return y_bcqhp.flatten(1, 2)[:, :length], state_bhpn


def _within_chunks(input_bcshp: Tensor, sums_bchq: Tensor, b_bcgsn: Tensor, c_bcgqn: Tensor) -> Tensor:
    """Give what positions of a chunk read of each other: (L ∘ C·Bᵀ)·x, the quadratic form (section 5)."""
    arguments = (input_bcshp.transpose(2, 3), sums_bchq, b_bcgsn, c_bcgqn)
    y_bchqp = cast("Tensor", _Quadratic.apply(*arguments))  # type: ignore[no-untyped-call]  # untyped in torch
    return y_bchqp.transpose(2, 3)


class _Quadratic(torch.autograd.Function):
    """With M = L ∘ C·Bᵀ and Y = M·X, the exponents of L have the gradient dM ∘ M, summed over its rows and columns.

    A row of it sums to dY·Y and a column to dX·X, so no third matrix of q × s is made (the same is true of attention:
    Dao et al. 2022, "FlashAttention", appendix B.2).
    """

    @staticmethod
    def forward(ctx: Any, x_bchsp: Tensor, sums_bchq: Tensor, b_bcgsn: Tensor, c_bcgqn: Tensor) -> Tensor:
        later_qs = torch.ones(sums_bchq.shape[-1:] * 2, dtype=torch.bool, device=sums_bchq.device).triu(1)
        decay_bchqs = (sums_bchq[..., :, None] - sums_bchq[..., None, :]).masked_fill_(later_qs, -torch.inf).exp_()
        scores_bcgqs = c_bcgqn @ b_bcgsn.mT
        grouped_bcgrqs = torch.unflatten(decay_bchqs, 2, (scores_bcgqs.shape[2], -1))
        weights_bchqs = (grouped_bcgrqs * scores_bcgqs[:, :, :, None]).flatten(2, 3).to(x_bchsp.dtype)
        y_bchqp = weights_bchqs @ x_bchsp
        ctx.save_for_backward(x_bchsp, b_bcgsn, c_bcgqn, decay_bchqs, weights_bchqs, y_bchqp)
        return y_bchqp

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_bchqp: Tensor) -> tuple[Tensor, ...]:
        x_bchsp, b_bcgsn, c_bcgqn, decay_bchqs, weights_bchqs, y_bchqp = ctx.saved_tensors
        dx_bchsp = weights_bchqs.mT @ dy_bchqp
        dsums_bchq = (dy_bchqp * y_bchqp).sum(-1) - (dx_bchsp * x_bchsp).sum(-1)
        dscores_bchqs = (dy_bchqp @ x_bchsp.mT).mul_(decay_bchqs)
        dscores_bcgqs = torch.unflatten(dscores_bchqs, 2, (b_bcgsn.shape[2], -1)).sum(3)
        return dx_bchsp, dsums_bchq, dscores_bcgqs.mT @ c_bcgqn, dscores_bcgqs @ b_bcgsn


def _added_by_chunks(input_bcshp: Tensor, sums_bchq: Tensor, b_bcgsn: Tensor) -> Tensor:
    """Give the state that each chunk leaves of its own inputs, decayed to its end."""
    to_the_end_bcsh = (sums_bchq[..., -1:] - sums_bchq).exp().transpose(2, 3)
    input_bcshp = (input_bcshp * to_the_end_bcsh[..., None]).to(input_bcshp.dtype)
    grouped_bcsgx = torch.unflatten(input_bcshp, 3, (b_bcgsn.shape[2], -1)).flatten(4)
    added_bcgxn = grouped_bcsgx.permute(0, 1, 3, 4, 2) @ b_bcgsn
    return torch.unflatten(added_bcgxn.flatten(2, 3), 2, input_bcshp.shape[3:])


def _carried(added_bchpn: Tensor, decay_bch: Tensor, state_bhpn: Tensor | None) -> tuple[Tensor, Tensor]:
    """Give the state before each chunk and the one after the last."""
    state_bhpn = torch.zeros_like(added_bchpn[:, 0]) if state_bhpn is None else state_bhpn
    before = []
    for added_bhpn, decay_bh in zip(added_bchpn.unbind(1), decay_bch.unbind(1), strict=True):
        before.append(state_bhpn)
        state_bhpn = added_bhpn + state_bhpn * decay_bh[..., None, None]
    return torch.stack(before, 1), state_bhpn


def _read_from_before(before_bchpn: Tensor, sums_bchq: Tensor, c_bcgqn: Tensor) -> Tensor:
    """Give what each position reads of the state before its chunk."""
    grouped_bcgxn = torch.unflatten(before_bchpn.flatten(2, 3), 2, (c_bcgqn.shape[2], -1)).to(c_bcgqn.dtype)
    read_bcqx = (c_bcgqn @ grouped_bcgxn.mT).transpose(2, 3).flatten(3)
    return torch.unflatten(read_bcqx, 3, before_bchpn.shape[2:4]) * sums_bchq.exp().transpose(2, 3)[..., None]


def step(
    x_bhp: Tensor, dt_bh: Tensor, a_h: Tensor, b_bgn: Tensor, c_bgn: Tensor, state_bhpn: Tensor
) -> tuple[Tensor, Tensor]:
    """Give y_bhp and the next state of one position: the recurrence itself."""
    b_bhn, c_bhn = (each.repeat_interleave(x_bhp.shape[1] // each.shape[1], dim=1) for each in (b_bgn, c_bgn))
    added_bhpn = (x_bhp * dt_bh[..., None])[..., None] * b_bhn[:, :, None]
    state_bhpn = added_bhpn + state_bhpn * (dt_bh * a_h).exp()[..., None, None]
    return (state_bhpn @ c_bhn[..., None])[..., 0], state_bhpn
