"""GPU utilisation as NVML reports it; never invented: None and a reason where there is no sensor."""

from collections.abc import Callable
from time import monotonic

import torch

MAXIMUM_AGE_SECONDS = 1.0


class Utilisation:
    """Call it for the newest sample in percent, at most one second old; `absent` says why there is none.

    A sensor that fails while it is in use stays absent from there on; `on_lost` is then told the reason, once.
    """

    def __init__(
        self,
        device: torch.device,
        clock: Callable[[], float] = monotonic,
        on_lost: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._clock = clock
        self._on_lost = on_lost
        self._sampled_at = -MAXIMUM_AGE_SECONDS
        self._value: float | None = None
        self._handle, self.absent = _open(device)

    def __call__(self) -> float | None:
        if self._handle is None:
            return None
        moment = self._clock()
        if moment - self._sampled_at >= MAXIMUM_AGE_SECONDS:
            self._sampled_at, self._value = moment, self._sample()
        return self._value

    def _sample(self) -> float | None:
        import pynvml

        try:
            return float(pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)
        except pynvml.NVMLError as error:
            self._handle, self.absent = None, f"NVML: {error}"
            self._on_lost(self.absent)
            return None


def _open(device: torch.device) -> tuple[object | None, str | None]:
    if device.type != "cuda":
        return None, f"device {device.type} has no GPU utilisation"
    import pynvml

    try:
        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode()), None
    except pynvml.NVMLError as error:
        return None, f"NVML: {error}"
