"""Whether two states, or two batches, are equal bit for bit, and where they are not."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainwright.state import State

LONGEST = 60


def bit_differences(one: State, other: State) -> Iterator[tuple[str, str]]:
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
    of_unit_stride = plain.as_strided((plain.numel(),), (1,))  # an empty tensor from NumPy may have a stride of 0
    return of_unit_stride.view(torch.uint8).view(plain.numel(), plain.element_size())


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


# -- nested batches --------------------------------------------------------------------------------------------------


def entries_of(batch: Any, prefix: str = "batch") -> dict[str, Any]:
    """Give a nested batch (tensor, array, mapping, tuple, list, object with fields) flat, as name → tensor or value."""
    return dict(_entries(batch, prefix, ()))


def _entries(value: Any, name: str, above: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    """Walk it in its order; what holds itself is entered once."""
    parts = _parts(value)
    if parts is None:
        yield name, _tensor_of(value) if isinstance(value, np.ndarray) else value
    elif id(value) not in above:
        for key, part in parts.items():
            yield from _entries(part, f"{name}.{key}", (*above, id(value)))


def _parts(value: Any) -> Mapping[Any, Any] | None:
    """Give what a value is made of, by name; None for one that is whole. What can be called is no data."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | list):
        return dict(zip(getattr(value, "_fields", range(len(value))), value, strict=True))
    if callable(value) or isinstance(value, Tensor):
        return None
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return vars(value) if hasattr(value, "__dict__") else None


def _tensor_of(array: "np.ndarray[Any, Any]") -> Any:
    """Give an array as a tensor; one of a type that no tensor has, as a list."""
    try:
        return torch.from_numpy(np.require(array, requirements=["C", "W"]))
    except (TypeError, ValueError):
        return array.tolist()


# -- how far apart ---------------------------------------------------------------------------------------------------


def cosine(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Give the cosine between two sets of tensors, each as one vector, in fp64; exactly 1 for equal bits.

    Tensors of whole numbers are left out.
    """
    pairs = _pairs(one, other)
    if all(torch.equal(a, b) for a, b in pairs):
        return 1.0
    dot, ours, theirs = (
        math.fsum((a * b).sum().item() for a, b in products)
        for products in (pairs, [(a, a) for a, _ in pairs], [(b, b) for _, b in pairs])
    )
    return dot / math.sqrt(ours * theirs)


def relative_distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Give ‖a − b‖ / ‖a‖ of two sets of tensors, each as one vector, in fp64, without those of whole numbers."""
    pairs = _pairs(one, other)
    distance = math.sqrt(sum((a - b).square().sum().item() for a, b in pairs))
    return distance / math.sqrt(sum(a.square().sum().item() for a, _ in pairs)) if distance else 0.0


def _pairs(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Sequence[tuple[Tensor, Tensor]]:
    return [(tensor.double(), other[name].double()) for name, tensor in one.items() if tensor.is_floating_point()]
