"""The depthwise causal convolution of Mamba-2. Shapes in names: b sequences, t positions, x channels, k taps."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class _CausalConvolution(torch.autograd.Function):
    """A sum of k shifted products in the layout that the projections around it have; torch's kernels want t last."""

    @staticmethod
    def forward(ctx: Any, inputs_btx: Tensor, taps_kx: Tensor, bias_x: Tensor) -> Tensor:
        ctx.save_for_backward(inputs_btx, taps_kx)
        length = inputs_btx.shape[1] - len(taps_kx) + 1
        y_btx = torch.addcmul(bias_x, inputs_btx[:, :length], taps_kx[0])
        for shift in range(1, len(taps_kx)):
            y_btx.addcmul_(inputs_btx[:, shift : shift + length], taps_kx[shift])
        return y_btx

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_btx: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        inputs_btx, taps_kx = ctx.saved_tensors
        length = dy_btx.shape[1]
        dinputs_btx = torch.zeros_like(inputs_btx)
        for shift, tap_x in enumerate(taps_kx):
            dinputs_btx[:, shift : shift + length].addcmul_(dy_btx, tap_x)
        dtaps = [(inputs_btx[:, shift : shift + length] * dy_btx).sum((0, 1)) for shift in range(len(taps_kx))]
        return dinputs_btx, torch.stack(dtaps), dy_btx.sum((0, 1))


class CausalConvolution(nn.Module):
    """Each channel with its own taps and bias, drawn uniformly from ±1/√k; names and shapes are those of nn.Conv1d."""

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, taps).uniform_(-(taps**-0.5), taps**-0.5))
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-(taps**-0.5), taps**-0.5))

    def forward(self, inputs_btx: Tensor) -> Tensor:
        """Give y_btx, k − 1 positions shorter than the inputs."""
        taps_kx = self.weight[:, 0].T.to(inputs_btx.dtype).contiguous()
        arguments = (inputs_btx, taps_kx, self.bias.to(inputs_btx.dtype))
        return cast("Tensor", _CausalConvolution.apply(*arguments))  # type: ignore[no-untyped-call]  # untyped in torch
