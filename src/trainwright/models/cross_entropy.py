"""Cross entropy of the next token for training: one table of probabilities from forward to backward."""

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _MeanCrossEntropy(torch.autograd.Function):
    """The gradient of the mean over n rows is (softmax − one-hot) / n (Bridle 1990).

    torch's own backward fills a table of zeros of the logits' size and reads it again; here the log-probabilities of
    the forward become the gradient in place. It therefore runs once.
    """

    @staticmethod
    def forward(ctx: Any, logits_nv: Tensor, targets_n: Tensor) -> Tensor:
        logarithms_nv = torch.log_softmax(logits_nv, dim=1)
        ctx.logarithms_nv, ctx.targets_n1 = logarithms_nv, targets_n[:, None]
        return -logarithms_nv.gather(1, ctx.targets_n1).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        if ctx.logarithms_nv is None:
            raise RuntimeError("the cross entropy of a language model gives its gradient once; compute the loss again")
        grad_nv, ctx.logarithms_nv = ctx.logarithms_nv.exp_(), None
        rows_n1 = grad_nv.gather(1, ctx.targets_n1)
        grad_nv.scatter_(1, ctx.targets_n1, rows_n1 - 1)
        return grad_nv.mul_(gradient / len(grad_nv)), None


def mean_cross_entropy(logits_nv: Tensor, targets_n: Tensor) -> Tensor:
    """Give the mean cross entropy in nats, 0-d, of rows of fp32 logits and the index of each row's target."""
    return cast("Tensor", _MeanCrossEntropy.apply(logits_nv, targets_n))  # type: ignore[no-untyped-call]  # untyped in torch
