"""Files of tensors are those that the format's own library writes."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save

from trainwright.checkpoints.tensorfile import TYPES, parts_of

Spec = tuple[torch.dtype, list[int]]
SPECS = st.tuples(st.sampled_from(list(TYPES)), st.lists(st.integers(0, 3), max_size=3))


def tensor(kind: torch.dtype, shape: list[int], first: int) -> torch.Tensor:
    count = math.prod(shape) * kind.itemsize
    values = (torch.arange(count) + first) % (2 if kind is torch.bool else 251)
    return values.to(torch.uint8).view(kind).reshape(shape)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8), SPECS, max_size=8))
def test_the_bytes_are_those_of_the_library(specs: dict[str, Spec]) -> None:
    tensors = {name: tensor(*spec, first=number) for number, (name, spec) in enumerate(specs.items())}
    tensors.pop("__metadata__", None)
    assert b"".join(parts_of(tensors)) == save(tensors)


def test_every_type_that_a_checkpoint_stores_can_be_written_and_read() -> None:
    tensors = {str(kind): tensor(kind, [2, 3], first=7) for kind in TYPES}
    loaded = load(b"".join(parts_of(tensors)))
    assert {name: value.dtype for name, value in loaded.items()} == {str(kind): kind for kind in TYPES}


def test_the_parts_are_the_memory_of_the_tensors_and_no_copy() -> None:
    weight = torch.zeros(4)
    _, memory = parts_of({"weight": weight})
    weight += 1
    assert bytes(memory) == weight.numpy().tobytes()
