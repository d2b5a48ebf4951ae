import pytest
import torch
from torch.nn import functional as F  # noqa: N812  torch's own convention

from trainwright.models.cross_entropy import mean_cross_entropy


def logits_and_targets(rows: int, vocabulary_size: int, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    logits_nv = torch.randn(rows, vocabulary_size, generator=generator) * scale
    return logits_nv.requires_grad_(), torch.randint(vocabulary_size, (rows,), generator=generator)


@pytest.mark.parametrize("scale", [0.0, 1.0, 100.0])
@pytest.mark.parametrize(("rows", "vocabulary_size"), [(1, 2), (7, 66), (64, 4096)])
def test_value_and_gradient_are_those_of_torch(rows: int, vocabulary_size: int, scale: float) -> None:
    logits_nv, targets_n = logits_and_targets(rows, vocabulary_size, scale)
    ours = mean_cross_entropy(logits_nv, targets_n)
    (our_gradient,) = torch.autograd.grad(ours * 3, logits_nv)
    theirs = F.cross_entropy(logits_nv, targets_n)
    (their_gradient,) = torch.autograd.grad(theirs * 3, logits_nv)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(our_gradient, their_gradient, rtol=1e-5, atol=1e-7)


def test_a_second_backward_is_refused_and_not_wrong() -> None:
    loss = mean_cross_entropy(*logits_and_targets(4, 8, 1.0))
    loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]  # untyped in torch
    with pytest.raises(RuntimeError, match="once"):
        loss.backward()  # type: ignore[no-untyped-call]  # untyped in torch
