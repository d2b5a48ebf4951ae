"""The two forms of Mamba-2's mixing, held against each other and against the sums that define them, in fp64."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  torch's own convention

from trainwright.models.causal_conv import CausalConvolution
from trainwright.models.ssd import ssd, step

SIZES = st.fixed_dictionaries(
    {
        "length": st.integers(1, 40),
        "heads_of_a_group": st.integers(1, 3),
        "groups": st.integers(1, 3),
        "width": st.integers(1, 5),
        "state": st.integers(1, 6),
    }
)
CHUNKS = st.integers(1, 48)


def drawn(
    length: int = 13, heads_of_a_group: int = 2, groups: int = 2, width: int = 3, state: int = 4, dt: float = 0.5
) -> tuple[Tensor, ...]:
    """Give x, Δ, A, B, C of two sequences, and a state before them."""
    stream = torch.Generator().manual_seed(length)
    heads = heads_of_a_group * groups

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=stream, dtype=torch.float64)

    x_bthp, dt_bth, a_h = normal(2, length, heads, width), dt * normal(2, length, heads).exp(), -normal(heads).exp()
    b_btgn, c_btgn = normal(2, length, groups, state), normal(2, length, groups, state)
    return x_bthp, dt_bth, a_h, b_btgn, c_btgn, normal(2, heads, width, state)


def recurrent(
    state_bhpn: Tensor, x_bthp: Tensor, dt_bth: Tensor, a_h: Tensor, b_btgn: Tensor, c_btgn: Tensor
) -> tuple[Tensor, Tensor]:
    outputs = []
    for t in range(x_bthp.shape[1]):
        of_t = (x_bthp[:, t], dt_bth[:, t], a_h, b_btgn[:, t], c_btgn[:, t])
        y_bhp, state_bhpn = step(*of_t, state_bhpn)
        outputs.append(y_bhp)
    return torch.stack(outputs, 1), state_bhpn


def test_a_step_is_the_recurrence_written_out() -> None:
    x_bthp, dt_bth, a_h, b_btgn, c_btgn, state_bhpn = drawn(1)
    y_bhp, after_bhpn = step(x_bthp[:, 0], dt_bth[:, 0], a_h, b_btgn[:, 0], c_btgn[:, 0], state_bhpn)
    for b, h, p in ((0, 0, 0), (1, 3, 2), (1, 1, 1)):
        dt, group = dt_bth[b, 0, h], h // 2
        expected_n = (dt * a_h[h]).exp() * state_bhpn[b, h, p] + dt * x_bthp[b, 0, h, p] * b_btgn[b, 0, group]
        torch.testing.assert_close(after_bhpn[b, h, p], expected_n)
        torch.testing.assert_close(y_bhp[b, h, p], expected_n @ c_btgn[b, 0, group])


@settings(max_examples=30, deadline=None)
@given(SIZES, CHUNKS)
def test_chunks_of_any_size_equal_the_recurrence_with_a_state_before_and_after(
    sizes: Mapping[str, int], chunk: int
) -> None:
    *inputs, state_bhpn = drawn(**sizes)
    torch.testing.assert_close(
        ssd(*inputs, chunk=chunk, state_bhpn=state_bhpn),
        recurrent(state_bhpn, *inputs),
        rtol=1e-9,
        atol=1e-9,
    )


def test_without_a_state_before_it_is_zero() -> None:
    *inputs, state_bhpn = drawn()
    given_y, given_state = ssd(*inputs, chunk=4)
    y_bthp, after_bhpn = ssd(*inputs, chunk=4, state_bhpn=torch.zeros_like(state_bhpn))
    assert torch.equal(given_y, y_bthp)
    assert torch.equal(given_state, after_bhpn)


@pytest.mark.parametrize(("length", "chunk"), [(4, 2), (5, 3), (3, 8)])
def test_every_gradient_is_the_finite_difference(length: int, chunk: int) -> None:
    inputs = [tensor[:1] if tensor.dim() > 1 else tensor for tensor in drawn(length, 2, 1, width=2, state=2)]
    inputs = [tensor.clone().requires_grad_() for tensor in inputs]

    def mixed(*given: Tensor) -> tuple[Tensor, Tensor]:
        return ssd(*given[:5], chunk=chunk, state_bhpn=given[5])

    assert torch.autograd.gradcheck(mixed, inputs, fast_mode=True)


def test_a_decay_that_underflows_gives_no_bad_number_forward_or_backward() -> None:
    """Δ·A of hundreds: exp of its negative, which no position asks for, would be infinite."""
    inputs = [tensor.float().requires_grad_() for tensor in drawn(64, dt=300.0)]
    y_bthp, state_bhpn = ssd(*inputs[:5], chunk=16, state_bhpn=inputs[5])
    (y_bthp.sum() + state_bhpn.sum()).backward()  # type: ignore[no-untyped-call]  # untyped in torch
    assert all(bool(torch.isfinite(tensor).all()) for tensor in (y_bthp, state_bhpn))
    assert all(bool(torch.isfinite(tensor.grad).all()) for tensor in inputs if tensor.grad is not None)


@settings(max_examples=20, deadline=None)
@given(SIZES, CHUNKS, st.data())
def test_what_comes_later_changes_nothing_before(sizes: Mapping[str, int], chunk: int, data: Any) -> None:
    cut = data.draw(st.integers(0, sizes["length"] - 1))
    x_bthp, dt_bth, a_h, b_btgn, c_btgn, _ = drawn(**sizes)
    changed = [tensor.clone() for tensor in (x_bthp, dt_bth, b_btgn, c_btgn)]
    for tensor in changed:
        tensor[:, cut:] += 1.0
    y_bthp, _ = ssd(x_bthp, dt_bth, a_h, b_btgn, c_btgn, chunk=chunk)
    other_bthp, _ = ssd(changed[0], changed[1], a_h, changed[2], changed[3], chunk=chunk)
    torch.testing.assert_close(y_bthp[:, :cut], other_bthp[:, :cut], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("taps", [1, 2, 4])
def test_the_convolution_and_its_gradients_equal_those_of_torch(taps: int) -> None:
    torch.manual_seed(0)
    ours = CausalConvolution(5, taps).double()
    inputs_btx = torch.randn(2, 9, 5, dtype=torch.float64, requires_grad=True)
    tensors = [inputs_btx, ours.weight, ours.bias]
    y_btx, expected_btx = ours(inputs_btx), F.conv1d(inputs_btx.mT, ours.weight, ours.bias, groups=5).mT
    torch.testing.assert_close(y_btx, expected_btx)
    torch.testing.assert_close(
        torch.autograd.grad(y_btx.square().sum(), tensors), torch.autograd.grad(expected_btx.square().sum(), tensors)
    )
