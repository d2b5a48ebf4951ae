"""When a step began and ended: by the host's clock, or by events on a CUDA stream, without waiting for it."""

from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor


class Clock(Protocol):
    """Marks moments of the device's work and fetches small tensors from it."""

    def mark(self) -> Any: ...
    def is_past(self, mark: Any) -> bool: ...
    def milliseconds(self, began: Any, ended: Any) -> float:
        """Give the time between two marks; waits for the second."""

    def fetch(self, numbers: Tensor) -> Tensor:
        """Start copying to the host; the copy is whole once a later mark is past."""


class HostClock:
    """For a device whose calls return when the work is done."""

    def __init__(self, now: Callable[[], float] = perf_counter) -> None:
        self._now = now

    def mark(self) -> float:
        return self._now()

    def is_past(self, mark: float) -> bool:
        return mark <= self._now()

    def milliseconds(self, began: float, ended: float) -> float:
        return (ended - began) * 1000

    def fetch(self, numbers: Tensor) -> Tensor:
        return numbers


class CudaClock:
    """CUDA events on the current stream: what lies between two of them, stalls for data included."""

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # untyped in torch
        event.record()
        return event

    def is_past(self, mark: torch.cuda.Event) -> bool:
        return bool(mark.query())  # type: ignore[no-untyped-call]  # untyped in torch

    def milliseconds(self, began: torch.cuda.Event, ended: torch.cuda.Event) -> float:
        ended.synchronize()
        return float(began.elapsed_time(ended))

    def fetch(self, numbers: Tensor) -> Tensor:
        return torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True).copy_(numbers, non_blocking=True)
