import json
import math
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load as read_with_safetensors
from torch import Tensor

from trainwright.checkpoints import codec, tensorfile
from trainwright.errors import DamagedCheckpointError, InputError
from trainwright.state import Segment, State, StateValue

DTYPES = sorted(tensorfile.TYPES, key=str)
SHAPES = [(), (0,), (3, 0, 2), (1,), (5,), (2, 3, 4)]


def there_and_back(state: State) -> dict[str, StateValue]:
    encoded = codec.encode(state)
    segments = {
        name: codec.segment_of(codec.segment_bytes(segment), name) for name, segment in encoded.segments.items()
    }
    return codec.decode(encoded.joined(), segments)


def bits(value: object) -> object:
    """Give what two equal values have in common, NaN and the sign of zero included."""
    if isinstance(value, Tensor):
        dense = value.detach().resolve_conj().resolve_neg().contiguous()
        return "tensor", str(value.dtype), tuple(value.shape), dense.reshape(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(value, Segment):
        return "segment", value.array.dtype.str, value.array.shape, value.array.tobytes(), value.sha256
    return "json", json.dumps(value, sort_keys=True)


def assert_same(found: State, expected: State) -> None:
    assert {name: bits(value) for name, value in found.items()} == {
        name: bits(value) for name, value in expected.items()
    }


def filled(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Give a tensor of any bits that are values of the type."""
    size = torch.empty(shape, dtype=dtype).nbytes
    drawn = np.random.default_rng(seed).integers(2 if dtype is torch.bool else 256, size=size, dtype=np.uint8)
    return torch.from_numpy(drawn).view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tensor_of_every_type_and_shape_comes_back_bit_for_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    state = {f"{group}.a.b": filled(dtype, shape, seed) for seed, group in enumerate(("model", "optimizer", "rng"))}
    assert_same(there_and_back(state), state)


def test_values_that_are_no_numbers_come_back_in_tensors() -> None:
    odd = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 5e-324])
    state = {f"model.{dtype}": odd.to(dtype) for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)}
    assert_same(there_and_back(state), state)


def test_views_come_back_as_what_they_show() -> None:
    base = torch.arange(24.0).reshape(4, 6)
    complex_1 = torch.tensor([1 + 2j, 3 - 4j])
    state = {
        "model.transposed": base.T,
        "model.strided": base[::2, 1::2],
        "model.slice": base[1:3],
        "model.expanded": torch.tensor([1.0, 2.0]).expand(3, 2),
        "model.channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "model.conjugate": complex_1.conj(),
        "model.negated": complex_1.conj().imag,
        "model.requires_grad": torch.nn.Parameter(torch.ones(2)),
    }
    assert_same(there_and_back(state), state)


def test_names_that_share_memory_each_come_back_whole() -> None:
    tied = torch.randn(5, 4)
    state = {"model.embedding": tied, "model.head": tied, "model.part": tied[1:3], "model.flipped": tied.T}
    back = there_and_back(state)
    assert_same(back, state)
    head, embedding = back["model.head"], back["model.embedding"]
    assert isinstance(head, Tensor)
    assert isinstance(embedding, Tensor)
    head.zero_()
    assert torch.equal(embedding, tied)


def test_names_that_share_memory_across_groups_come_back() -> None:
    tied = torch.randn(3)
    state = {"model.a": tied, "optimizer.a": tied, "other": tied}
    assert_same(there_and_back(state), state)


def test_a_model_file_has_the_names_that_other_tools_read() -> None:
    state: State = {"model.layers.0.weight": torch.ones(2), "optimizer.0.exp_avg": torch.ones(1), "x": 1}
    files = codec.encode(state).joined()
    assert sorted(files) == ["model.safetensors", "optimizer.safetensors", "state.json"]
    assert list(read_with_safetensors(files["model.safetensors"])) == ["layers.0.weight"]
    assert json.loads(files["state.json"]) == {"x": 1}


@pytest.mark.parametrize("name", ["model", "optimizer", "model.", "rest", "rest.a", "state", "é.ß", "a b", "../a"])
def test_a_tensor_keeps_its_name_whatever_that_is(name: str) -> None:
    state = {name: torch.ones(2)}
    assert_same(there_and_back(state), state)


JSON_VALUES: dict[str, Any] = {
    "none": None,
    "true": True,
    "zero": 0,
    "minus zero": -0.0,
    "large": 2**128 + 1,
    "small": -(2**64),
    "exact above 2**53": 2**53 + 1,
    "float": 0.1 + 0.2,
    "tiny": 5e-324,
    "text": "é\u2028\U0001f600 \0 \ud800",
    "nested": {"list": [1, [2.5, [None, {"deep": [True]}]]], "empty": {}, "none": []},
    "numpy's double": np.float64(1.5),
}


@pytest.mark.parametrize("name", JSON_VALUES)
def test_a_json_value_comes_back_equal(name: str) -> None:
    back = there_and_back({name: JSON_VALUES[name]})
    assert back == {name: JSON_VALUES[name]}
    assert bits(back[name]) == bits(JSON_VALUES[name])


def test_a_tuple_comes_back_as_a_list() -> None:
    assert there_and_back({"x": {"y": (1, (2,))}}) == {"x": {"y": [1, [2]]}}  # type: ignore[dict-item]  # the point


REFUSED: dict[str, Any] = {
    "nan": math.nan,
    "inf": [1.0, {"x": -math.inf}],
    "key of a number": {"a": [{1: 2}]},
    "keys of two kinds": {"a": {1: 2, "b": 3}},
    "set": {1},
    "bytes": b"1",
    "numpy's integer": np.int64(1),
    "array": np.zeros(2),
    "tensor in a list": [torch.ones(1)],
    "a number too long to read back": 10**5000,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_json_cannot_hold_is_refused_by_the_name_of_its_entry(name: str) -> None:
    with pytest.raises(InputError, match=f"the state's entry {re.escape(repr(name))}"):
        codec.encode({"good": 1, name: REFUSED[name], "model.weight": torch.ones(1)})


def test_a_value_nested_without_end_is_refused_by_name() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InputError, match="'endless'"):
        codec.encode({"endless": endless})


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("model.sparse", torch.eye(3).to_sparse()),
        ("model.double", torch.zeros(2, dtype=torch.complex128)),
        ("optimizer.scale", torch.zeros(2, dtype=torch.uint8).view(torch.float8_e8m0fnu)),
        ("model.__metadata__", torch.zeros(2)),
    ],
)
def test_a_tensor_that_could_not_be_read_back_is_refused_by_name(name: str, tensor: Tensor) -> None:
    with pytest.raises(InputError, match=name.partition(".")[2]):
        codec.encode({name: tensor})


@pytest.mark.parametrize(
    "array", [np.zeros((0, 3), np.float32), np.arange(6, dtype=np.uint8).reshape(2, 3), np.ones(1)]
)
def test_a_segment_comes_back_under_the_same_hash(array: npt.NDArray[Any]) -> None:
    state: dict[str, StateValue] = {"replay.block0": Segment(array), "replay.position": 3}
    assert codec.encode(state).segments.keys() == {"replay.block0"}
    assert_same(there_and_back(state), state)


def test_segments_of_other_shape_type_or_content_have_another_hash() -> None:
    arrays = [np.zeros(4, np.int32), np.zeros((2, 2), np.int32), np.zeros(4, np.float32), np.ones(4, np.int32)]
    assert len({Segment(array).sha256 for array in arrays}) == len(arrays)


def test_equal_states_give_equal_bytes_whatever_their_order_and_memory() -> None:
    weights = torch.randn(4, 4)
    one: dict[str, StateValue] = {"model.a": weights.T, "model.b": weights, "x": {"b": 1, "a": [2]}, "y": 1.5}
    other: dict[str, StateValue] = {"y": 1.5, "x": {"a": [2], "b": 1}, "model.b": weights.clone()}
    other["model.a"] = weights.T.contiguous()
    assert codec.encode(one) == codec.encode(other)


@pytest.mark.parametrize(
    ("file", "data"),
    [
        ("state.json", b"{"),
        ("state.json", b"[1]"),
        ("state.json", b"3"),
        ("state.json", b"\xff"),
        ("model.safetensors", b""),
        ("model.safetensors", b"\x02\0\0\0\0\0\0\0{}x"),
        ("foreign.bin", b"abc"),
    ],
)
def test_a_file_that_does_not_parse_is_told_by_its_name(file: str, data: bytes) -> None:
    with pytest.raises(DamagedCheckpointError, match=file):
        codec.decode({file: data}, {})


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda name: name != codec.RESERVED)
prefixes = st.sampled_from(["model.", "optimizer.", "rng.", "", "model.layers.0.", "loop."])
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
tensors = st.builds(filled, st.sampled_from(DTYPES), shapes, st.integers(0, 9))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
segments = tensors.filter(lambda tensor: tensor.dtype in {torch.uint8, torch.float32, torch.int64} and tensor.ndim > 0)
values = tensors | tensors.map(lambda tensor: tensor.mT if tensor.ndim > 1 else tensor) | json_values
states = st.dictionaries(
    st.builds(str.__add__, prefixes, names), values | segments.map(lambda tensor: Segment(tensor.numpy())), max_size=6
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(states)
def test_any_state_comes_back_bit_for_bit(state: State) -> None:
    back = there_and_back(state)
    assert_same(back, state)
    again, reordered = codec.encode(back), codec.encode(dict(reversed(list(state.items()))))
    assert again.joined() == reordered.joined()
    assert list(map(codec.segment_bytes, again.segments.values())) == [
        codec.segment_bytes(reordered.segments[name]) for name in again.segments
    ]
