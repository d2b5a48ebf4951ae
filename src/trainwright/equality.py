"""Whether two states, or two batches, are equal bit for bit, and where they are not."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainwright.state import State

LONGEST = 60


def differences(one: State, other: State) -> Iterator[tuple[str, str]]:
    """Give (entry, how it differs) for each entry that is not equal bit for bit: NaN equals NaN, 0.0 is not -0.0."""
    for name in dict.fromkeys((*one, *other)):
        if name not in one or name not in other:
            yield name, "stands in one of them only"
        elif text := _difference(one[name], other[name]):
            yield name, text


def _difference(one: Any, other: Any) -> str:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return _tensor_difference(one, other)
    equal = type(one) is type(other) and one == other
    return "" if equal else f"is {_shown(one)} and {_shown(other)}"


def _tensor_difference(one: Tensor, other: Tensor) -> str:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return f"is {one.dtype} of shape {list(one.shape)} and {other.dtype} of shape {list(other.shape)}"
    unequal = torch.nonzero((_bits(one) != _bits(other)).any(1)).flatten()
    if not len(unequal):
        return ""
    first = int(unequal[0])
    values = " and ".join(_shown(tensor.detach().flatten()[first].item()) for tensor in (one, other))
    return f"differs in {len(unequal)} of {one.numel()} elements; element {first} is {values}"


def _bits(tensor: Tensor) -> Tensor:
    """Give the bytes of each element, shape (elements, bytes of one)."""
    plain = tensor.detach().cpu().contiguous()
    return plain.reshape(-1).view(torch.uint8).view(plain.numel(), plain.element_size())


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def entries_of(batch: Any, prefix: str = "batch") -> dict[str, Any]:
    """Give a nested batch (tensor, array, mapping, tuple, object with fields) flat, as name → tensor or value."""
    if isinstance(batch, np.ndarray):
        return {prefix: torch.from_numpy(batch)}
    if isinstance(batch, Mapping):
        parts = dict(batch)
    elif isinstance(batch, tuple | list):
        parts = dict(zip(getattr(batch, "_fields", range(len(batch))), batch, strict=True))
    elif not isinstance(batch, Tensor) and hasattr(batch, "__dict__"):
        parts = vars(batch)
    else:
        return {prefix: batch}
    return {name: value for key, part in parts.items() for name, value in entries_of(part, f"{prefix}.{key}").items()}
