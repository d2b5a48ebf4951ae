"""Errors of a user's code, and of memory, told in one line."""

import re

import pytest
import torch

from trainwright import failures

MIB = 1 << 20


def test_memory_that_ran_out_on_the_host_is_told_with_the_peak_of_the_process() -> None:
    for error in (MemoryError("no room"), RuntimeError("DefaultCPUAllocator: can't allocate memory")):
        assert failures.is_out_of_memory(error)
        found = re.fullmatch(rf"out of memory: {error}; peak of this process (\d+) MiB; lower .*", str(told(error)))
        assert found is not None
        assert int(found[1]) > 10


def told(error: Exception) -> str:
    return failures.out_of_memory(error)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the error is then of the device that is here")
def test_an_error_of_a_device_that_is_not_here_is_told_with_the_peak_of_the_process() -> None:
    assert "; peak of this process " in told(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_memory_that_ran_out_on_a_device_is_told_with_the_peak_on_it() -> None:
    torch.empty(300 * MIB, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    found = re.search(r"; peak of this process on the device (\d+) MiB; ", told(caught.value))
    assert found is not None
    assert int(found[1]) >= 300
