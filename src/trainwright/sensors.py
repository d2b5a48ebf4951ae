"""GPU utilisation as NVML reports it; never invented: None and a reason where there is no sensor."""

from collections.abc import Callable
from time import monotonic

import torch

from trainwright.nvml import Driver, Nvml, NvmlError

MAXIMUM_AGE_SECONDS = 1.0


def uuid_of(device: torch.device) -> str:
    """Give the UUID of a CUDA device, by which NVML knows it."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


class Utilisation:
    """Call it for the newest sample in percent, at most one second old; `absent` says why there is none.

    A sensor that fails while it is in use stays absent from there on; `on_lost` is then told the reason, once.
    """

    def __init__(
        self,
        device: torch.device,
        clock: Callable[[], float] = monotonic,
        on_lost: Callable[[str], None] = lambda _: None,
        *,
        connect: Callable[[], Nvml] = Driver,
        name: Callable[[torch.device], str] = uuid_of,
    ) -> None:
        self._clock = clock
        self._on_lost = on_lost
        self._sampled_at = -MAXIMUM_AGE_SECONDS
        self._value: float | None = None
        self._nvml: Nvml | None = None
        self.absent: str | None = f"device {device.type} has no GPU utilisation"
        if device.type == "cuda":
            self._open(device, connect, name)

    def _open(self, device: torch.device, connect: Callable[[], Nvml], name: Callable[[torch.device], str]) -> None:
        try:
            self._nvml, self.absent = connect(), None
            self._uuid = name(device)
            self._nvml.gpu(self._uuid)
        except NvmlError as error:
            self._nvml, self.absent = None, str(error)

    def __call__(self) -> float | None:
        if self._nvml is None:
            return None
        moment = self._clock()
        if moment - self._sampled_at >= MAXIMUM_AGE_SECONDS:
            self._sampled_at, self._value = moment, self._sample(self._nvml)
        return self._value

    def _sample(self, nvml: Nvml) -> float | None:
        try:
            value = nvml.utilisation_pct(self._uuid)
        except NvmlError as error:
            self._lose(str(error))
            return None
        if value is None:
            self._lose("NVML: Not Supported")
        return value

    def _lose(self, reason: str) -> None:
        self._nvml, self.absent = None, reason
        self._on_lost(reason)
