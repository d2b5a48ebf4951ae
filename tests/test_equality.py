from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch

from trainwright.equality import bit_differences, cosine, entries_of, relative_distance
from trainwright.state import Segment, StateValue


def difference(one: StateValue, other: StateValue) -> str:
    return dict(bit_differences({"x": one}, {"x": other})).get("x", "")


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([1.0, float("nan")]),
        torch.tensor(2, dtype=torch.bfloat16),
        torch.empty(0, 3),
        torch.arange(6).view(2, 3).T,
        torch.tensor([True]),
        Segment(np.arange(3)),
        {"a": [1, None, "text"]},
    ],
    ids=["nan", "0-d", "empty", "transposed", "bool", "segment", "json"],
)
def test_what_has_equal_bits_is_equal(value: StateValue) -> None:
    copy = value.clone() if isinstance(value, torch.Tensor) else value
    assert difference(value, copy) == ""


def test_a_tensor_is_told_by_its_first_element_that_differs() -> None:
    one, other = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 2.5], [3.5, 4.0]])
    assert difference(one, other) == "differs in 2 of 4 elements; element 1 is 2.0 and 2.5"


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        (torch.tensor([0.0]), torch.tensor([-0.0]), "element 0 is 0.0 and -0.0"),
        (torch.tensor([1]), torch.tensor([1.0]), "is torch.int64 of shape [1] and torch.float32 of shape [1]"),
        (torch.zeros(2), torch.zeros(2, 1), "of shape [2] and torch.float32 of shape [2, 1]"),
        (3, 4, "is 3 and 4"),
        (1, 1.0, "is 1 and 1.0"),
        (Segment(np.zeros(2)), Segment(np.ones(2)), "is Segment("),
    ],
)
def test_what_differs_is_told(one: StateValue, other: StateValue, told: str) -> None:
    assert told in difference(one, other)


def test_an_entry_of_one_state_only_is_a_difference() -> None:
    assert list(bit_differences({"a": 1}, {"b": 1})) == [
        ("a", "stands in one of them only"),
        ("b", "stands in one of them only"),
    ]


class Pair(NamedTuple):
    x: torch.Tensor
    y: object


@dataclass(slots=True)
class Held:
    rows: object


class Plain:
    def __init__(self, rows: object) -> None:
        self.rows = rows


def test_a_nested_batch_is_flat_by_the_names_of_its_parts() -> None:
    batch = Pair(torch.zeros(1), {"ids": [torch.ones(1), Held(np.array([2]))], "name": "n"})
    found = entries_of(batch)
    assert list(found) == ["batch.x", "batch.y.ids.0", "batch.y.ids.1.rows", "batch.y.name"]
    assert torch.equal(found["batch.y.ids.1.rows"], torch.tensor([2]))
    assert found["batch.y.name"] == "n"


def test_a_slotted_a_plain_and_a_callable_object_are_fields_fields_and_whole() -> None:
    layer = torch.nn.Linear(1, 1)
    assert list(entries_of([Held(1), Plain(2), layer, Held])) == ["batch.0.rows", "batch.1.rows", "batch.2", "batch.3"]
    assert entries_of([layer])["batch.0"] is layer


def test_what_holds_itself_is_walked_once() -> None:
    circle = Plain([torch.zeros(1)])
    circle.rows.append(circle)  # type: ignore[attr-defined]  # a list here
    assert list(entries_of(circle)) == ["batch.rows.0"]


def test_an_array_that_no_tensor_can_hold_comes_as_a_list_and_any_other_as_a_tensor() -> None:
    found = entries_of({"names": np.array(["a", "b"]), "back": np.arange(3)[::-1]})
    assert found["batch.names"] == ["a", "b"]
    assert torch.equal(found["batch.back"], torch.tensor([2, 1, 0]))


def test_the_cosine_of_weights_takes_all_tensors_as_one_vector_and_no_whole_numbers() -> None:
    one = {"model.a": torch.tensor([3.0]), "model.b": torch.tensor([[4.0]]), "model.n": torch.tensor([1])}
    other = {"model.a": torch.tensor([4.0]), "model.b": torch.tensor([[3.0]]), "model.n": torch.tensor([9])}
    assert cosine(one, other) == pytest.approx(24 / 25)
    assert cosine(one, one) == 1.0


def test_the_relative_distance_is_that_of_all_tensors_as_one_vector() -> None:
    one = {"a": torch.tensor([3.0]), "b": torch.tensor([[4.0]]), "n": torch.tensor([1])}
    assert relative_distance(one, {**one, "b": torch.tensor([[4.5]]), "n": torch.tensor([9])}) == pytest.approx(0.1)
    assert relative_distance(one, one) == 0.0


def test_empty_tensors_are_equal_whatever_their_strides() -> None:
    empty = torch.from_numpy(np.empty((1, 0)).max(0))
    assert list(bit_differences({"a": empty}, {"a": torch.zeros(0, dtype=torch.float64)})) == []
