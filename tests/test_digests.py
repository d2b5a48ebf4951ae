from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from trainwright.digests import SAMPLED, digest, fingerprints, on_host, row_digests, sampled, tensors_of


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (0, 4)])
def test_equal_tensors_have_equal_digests_of_any_type_and_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    assert digest([torch.ones(shape, dtype=dtype)]) == digest([torch.ones(shape, dtype=dtype)])


def test_a_digest_tells_the_last_bit_the_type_the_shape_and_the_order() -> None:
    one, two = torch.ones(2, 3), torch.ones(2, 3)
    two[1, 2] = torch.nextafter(one[1, 2], torch.tensor(2.0))
    told = [[one], [two], [one.long()], [one.t()], [one, two], [two, one]]
    assert len({digest(tensors) for tensors in told}) == len(told)


@pytest.mark.parametrize("length", [0, 1, SAMPLED - 1, SAMPLED, SAMPLED + 1, 10 * SAMPLED])
def test_a_sample_is_the_whole_of_a_small_tensor_and_bounded_for_a_large_one(length: int) -> None:
    size = len(sampled(torch.zeros(length)))
    assert size == length if length <= SAMPLED else SAMPLED / 3 <= size <= SAMPLED


def test_a_sample_of_a_matrix_reaches_all_of_its_columns() -> None:
    columns = torch.arange(64).expand(1024, 64)
    assert set(sampled(columns).tolist()) == set(range(64))


def test_a_fingerprint_changes_with_a_tensor_and_only_with_its_own() -> None:
    tensors: dict[str, Tensor] = {"moved": torch.zeros(3, 100_000), "still": torch.zeros(4)}
    before = fingerprints(tensors)
    tensors["moved"] += 1e-30
    after = fingerprints(tensors)
    assert after["moved"] != before["moved"]
    assert after["still"] == before["still"]


class Named(NamedTuple):
    x: Tensor
    label: str


@dataclass(frozen=True, slots=True)
class Fielded:
    x: Tensor
    rest: Mapping[str, Any]


def test_every_tensor_of_a_nested_batch_is_found_in_its_order() -> None:
    a, b, c, d, e = (torch.tensor(float(number)) for number in range(5))
    batch = (a, Named(b, "no tensor"), [Fielded(c, {"d": d, "none": None})], {"e": e})
    assert [tensor.item() for tensor in tensors_of(batch)] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert tensors_of("no tensor") == []


def test_a_copy_on_the_host_stays_as_the_tensor_was() -> None:
    tensor = torch.ones(3)
    copy = on_host(tensor[::2])
    tensor.zero_()
    assert copy.tolist() == [1.0, 1.0]


def test_rows_are_told_apart_by_all_tensors_that_have_them() -> None:
    x, y = torch.tensor([[1, 2], [1, 2], [3, 4]]), torch.tensor([0, 1, 0])
    rows = row_digests([x, y, torch.tensor(5.0)])
    assert rows is not None
    assert len(rows) == len(set(rows)) == 3
    assert row_digests([x[1:2], y[1:2]]) == rows[1:2]


def test_tensors_without_rows_in_common_have_none() -> None:
    assert row_digests([torch.zeros(3, 2), torch.zeros(4)]) is None
    assert row_digests([torch.tensor(1.0)]) is None
    assert row_digests([]) is None
