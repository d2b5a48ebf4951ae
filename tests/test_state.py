from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainwright.errors import DamagedCheckpointError
from trainwright.state import Segment, require, require_tensor, under_prefix, with_prefix

NAMES = st.text(st.sampled_from("ab."), min_size=1, max_size=6)


@given(st.dictionaries(NAMES, st.integers()), st.dictionaries(NAMES, st.integers()))
def test_groups_put_together_come_apart_again(model: dict[str, int], rest: dict[str, int]) -> None:
    together = {**with_prefix("model", model), **with_prefix("modelling", rest)}
    assert under_prefix("model", together) == model
    assert under_prefix("modelling", together) == rest


def test_a_missing_entry_is_an_error_that_names_it() -> None:
    assert require({"a": None}, "a") is None
    with pytest.raises(DamagedCheckpointError, match=r"no entry 'source\.epoch'"):
        require({"source.position": 1}, "source.epoch")


def test_an_entry_that_is_no_tensor_is_an_error_that_names_it() -> None:
    tensor = torch.ones(2)
    assert require_tensor({"a": tensor}, "a") is tensor
    with pytest.raises(DamagedCheckpointError, match="entry 'a' of the checkpoint is a list, expected a tensor"):
        require_tensor({"a": [1]}, "a")


def test_a_segments_name_depends_on_bytes_type_and_shape() -> None:
    arrays: list[npt.NDArray[Any]] = [
        np.arange(6, dtype=np.int32),
        np.arange(6, dtype=np.int32).reshape(2, 3),
        np.arange(6, dtype=np.uint32),
        np.arange(6, dtype=np.int64),
        np.array([0, 1, 2, 3, 4, 6], np.int32),
    ]
    assert len({Segment(array).sha256 for array in arrays}) == len(arrays)
    assert Segment(arrays[0]).sha256 == Segment(np.arange(12, dtype=np.int32)[:6].copy()).sha256


def test_a_segment_takes_any_layout_and_no_elements_at_all() -> None:
    grid = np.arange(6, dtype=np.float16).reshape(2, 3)
    assert Segment(grid.T).sha256 == Segment(np.ascontiguousarray(grid.T)).sha256
    assert Segment(np.empty((0, 3), np.float32)).array.shape == (0, 3)
    assert Segment(np.zeros(2, ">f4")).sha256 != Segment(np.zeros(2, "<f4")).sha256


def test_a_segment_cannot_be_changed() -> None:
    segment = Segment(np.zeros(3))
    with pytest.raises(ValueError, match="read-only"):
        segment.array[0] = 1.0
