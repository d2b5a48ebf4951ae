"""GPU utilisation as NVML reports it; never invented: None and a reason where there is no sensor."""

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

import torch

from trainwright.nvml import Driver, Nvml, NvmlError

MAXIMUM_AGE_SECONDS = 1.0


def uuid_of(device: torch.device) -> str:
    """Give the UUID of a CUDA device, by which NVML knows it."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


@dataclass(frozen=True, slots=True)
class Sensor:
    """The driver, and the UUID by which it knows the run's GPU."""

    nvml: Nvml
    uuid: str


@dataclass(frozen=True, slots=True)
class NoSensor:
    """Why there is no sensor of the run's device."""

    reason: str


def open_sensor(
    device: torch.device,
    *,
    connect: Callable[[], Nvml] = Driver,
    name: Callable[[torch.device], str] = uuid_of,
) -> Sensor | NoSensor:
    """Open the driver for a CUDA device, or say why it cannot be asked.

    It stays open while the process lives: the thread that samples may be in a call that NVML never answers.
    """
    if device.type != "cuda":
        return NoSensor(f"device {device.type} has no GPU utilisation")
    try:
        sensor = Sensor(connect(), name(device))
        sensor.nvml.gpu(sensor.uuid)
    except NvmlError as error:
        return NoSensor(str(error))
    return sensor


class Utilisation:
    """Call it for the newest sample in percent, at most one second old; `absent` says why there is none.

    A sensor that fails while it is in use stays absent from there on; `on_lost` is then told the reason, once.
    """

    def __init__(
        self,
        sensor: Sensor | NoSensor,
        clock: Callable[[], float] = monotonic,
        on_lost: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._clock = clock
        self._on_lost = on_lost
        self._sampled_at = -MAXIMUM_AGE_SECONDS
        self._value: float | None = None
        self._sensor = sensor if isinstance(sensor, Sensor) else None
        self.absent = sensor.reason if isinstance(sensor, NoSensor) else None

    def __call__(self) -> float | None:
        if self._sensor is None:
            return None
        moment = self._clock()
        if moment - self._sampled_at >= MAXIMUM_AGE_SECONDS:
            self._sampled_at, self._value = moment, self._sample(self._sensor)
        return self._value

    def _sample(self, sensor: Sensor) -> float | None:
        try:
            value = sensor.nvml.utilisation_pct(sensor.uuid)
        except NvmlError as error:
            self._lose(str(error))
            return None
        if value is None:
            self._lose("NVML: Not Supported")
        return value

    def _lose(self, reason: str) -> None:
        self._sensor, self.absent = None, reason
        self._on_lost(reason)
