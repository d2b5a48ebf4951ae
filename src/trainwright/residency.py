"""The guard of residency: a run that was asked to train on a GPU is on it, as the driver itself sees it, or ends."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, final

import torch

from trainwright.devices import WITHIN_SECONDS, DeviceSample, Sampler, is_resident, seconds_between
from trainwright.recorder import Recorder
from trainwright.rundir import Attempt
from trainwright.sensors import NoSensor, Sensor
from trainwright.timestamps import now

LATE_SECONDS: Final = 2.0  # a sample that was taken in time is on record by then
HINT: Final = (
    "NVML gives pids as the host has them: in a container, share the host's, as in docker run --pid=host, or train "
    "without this guard by guards.residency=off"
)


@final
class ResidencyGuard:
    """Ask it at every step: a reason ends the run. `saw` and `lost` are for the sampler's thread.

    `first_step` gives the time of the attempt's first row, as recorded, or None before it.
    """

    def __init__(self, pid: int, first_step: Callable[[], str | None], clock: Callable[[], str] = now) -> None:
        self._pid, self._first_step, self._clock = pid, first_step, clock
        self._own: list[tuple[str, float | None]] = []
        self._on_device: Sequence[int] = ()
        self._lost = ""
        self._settled = False

    def saw(self, rows: Sequence[DeviceSample]) -> None:
        if not self._settled:
            self._own += [(row.time, row.used_mib) for row in rows if row.pid == self._pid]
            self._on_device = [row.pid for row in rows if row.pid is not None]

    def lost(self, reason: str) -> None:
        self._lost = reason

    def __call__(self) -> str | None:
        began = None if self._settled else self._first_step()
        if began is None:
            return None
        self._settled = is_resident((seconds_between(began, time), mib) for time, mib in tuple(self._own))
        late = seconds_between(began, self._clock()) > WITHIN_SECONDS + LATE_SECONDS
        return self._reason() if late and not self._settled else None

    def _reason(self) -> str:
        within = f"within {WITHIN_SECONDS:g} s of its first step"
        told = f"process {self._pid} was not seen with memory on the device {within}"
        if self._lost:
            return f"{told}: its samples ended: {self._lost}"
        if self._pid in self._on_device:
            return f"{told}: the driver names it and tells no memory of its own"
        there = ", ".join(map(str, self._on_device[:5]))
        return f"{told}: processes there: {there or 'none'}; {HINT}"


@contextmanager
def watched(
    device: torch.device,
    sensor: Sensor | NoSensor,
    attempt: Attempt,
    recorder: Recorder,
    *,
    guarded: bool = True,
) -> Iterator[Callable[[], str | None]]:
    """Sample a CUDA device into devices.csv while the block runs; give what the loop asks before each step.

    A CPU has no samples, and nothing is asked of it; where the run is not `guarded`, samples alone are taken.
    """
    if device.type != "cuda":
        yield lambda: None
        return
    guard = ResidencyGuard(os.getpid(), lambda: recorder.first_row_at)

    def lost(reason: str) -> None:
        guard.lost(reason)
        recorder.event("sensor_lost", sensor="devices", reason=reason)

    halt = guard if guarded else lambda: None
    if isinstance(sensor, NoSensor):
        lost(sensor.reason)
        yield halt
        return
    sampler = Sampler(attempt.devices, sensor.nvml, sensor.uuid, on_sample=guard.saw, on_lost=lost)
    sampler.start()
    try:
        yield halt
    finally:
        sampler.stop()
