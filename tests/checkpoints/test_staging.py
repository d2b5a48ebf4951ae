"""A staged state is a copy in memory that is allocated once."""

import weakref

import numpy as np
import pytest
import torch

from trainwright.checkpoints.codec import encode
from trainwright.checkpoints.staging import Staging
from trainwright.errors import InputError
from trainwright.state import Segment, require_tensor


def test_a_staged_state_stays_as_it_was_when_training_goes_on() -> None:
    weight, transposed = torch.arange(6.0), torch.arange(6).reshape(2, 3).t()
    segment = Segment(np.arange(3))
    staged = Staging().copy({"model.w": weight, "rest.t": transposed, "segment": segment, "loop": {"step": 3}})
    weight += 1
    transposed += 1
    assert torch.equal(require_tensor(staged, "model.w"), torch.arange(6.0))
    assert torch.equal(require_tensor(staged, "rest.t"), torch.arange(6).reshape(2, 3).t())
    assert staged["segment"] is segment
    assert staged["loop"] == {"step": 3}


def test_buffers_are_allocated_once_and_again_only_for_another_shape() -> None:
    staging = Staging()
    first = staging.copy({"w": torch.zeros(4), "v": torch.zeros(2)})
    second = staging.copy({"w": torch.ones(4), "v": torch.ones(3)})
    assert require_tensor(first, "w").data_ptr() == require_tensor(second, "w").data_ptr()
    assert torch.equal(require_tensor(second, "w"), torch.ones(4))
    assert torch.equal(require_tensor(second, "v"), torch.ones(3))


def test_the_buffer_of_a_tensor_that_is_in_no_state_any_more_is_given_back() -> None:
    staging = Staging()
    buffer = weakref.ref(require_tensor(staging.copy({"w": torch.zeros(4)}), "w"))
    staging.copy({"v": torch.zeros(2)})
    assert buffer() is None


def test_a_tensor_that_no_file_can_hold_is_refused_as_it_is_without_a_copy() -> None:
    staged = Staging().copy({"model.w": torch.eye(3).to_sparse()})
    with pytest.raises(InputError, match=r"'w' of 'model' \(torch.float32, torch.sparse_coo\) cannot be stored"):
        encode(staged)
