"""Device names: their grammar, and whether the device is there, decided without importing torch."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from trainwright.errors import DeviceUnavailableError, InputError
from trainwright.nvml import Gpu, Nvml, NvmlError, driver

GRAMMAR = "^(cpu|cuda(:[0-9]|:1[0-5])?|auto)$"
VISIBLE = "CUDA_VISIBLE_DEVICES"
AUTO_NOTICE = "device auto: no CUDA device, using the CPU"


@dataclass(frozen=True, slots=True)
class Device:
    """A device that is there: `name` is `cpu` or `cuda:N`; `notice` says why `auto` did not take a GPU."""

    name: str
    notice: str | None = None


def check_grammar(spec: str) -> str:
    """Return `spec`; InputError, with the grammar, when it is no device name."""
    if not re.fullmatch(GRAMMAR, spec):
        raise InputError(f"device {spec!r} is not one of: cpu, cuda, cuda:0 … cuda:15, auto (grammar {GRAMMAR})")
    return spec


def resolve(spec: str) -> Device:
    """Decide which device `spec` means on this machine.

    Errors: InputError for a name outside the grammar, DeviceUnavailableError for a CUDA device that is not there.
    """
    check_grammar(spec)
    if spec == "cpu":
        return Device("cpu")
    count, reason = cuda_devices()
    if spec == "auto":
        return Device("cuda:0") if count else Device("cpu", notice=AUTO_NOTICE)
    index = int(spec.partition(":")[2] or 0)
    if index >= count:
        raise DeviceUnavailableError(
            f"device {spec!r} was asked for, and this machine shows {count} CUDA devices ({reason}); "
            "use --device cpu or --device auto, or a machine that has it"
        )
    return Device(f"cuda:{index}")


def cuda_devices() -> tuple[int, str]:
    """Give how many CUDA devices this process can see, by NVML and CUDA_VISIBLE_DEVICES, and where that is from."""
    try:
        with driver() as nvml:
            count = nvml.count()
    except NvmlError as error:
        return 0, str(error)
    visible = os.environ.get(VISIBLE)
    return count if visible is None else visible_devices(count, visible), _source(visible)


def _source(visible: str | None) -> str:
    return "NVML" if visible is None else f"NVML and {VISIBLE}={visible}"


@dataclass(frozen=True, slots=True)
class Installed:
    """What the driver says of this machine: its version, the CUDA that it runs, the GPUs that this process can see.

    `absent` says why there is none of it, and where there are no GPUs, how they were looked for.
    """

    driver: str | None
    cuda: str | None
    gpus: Sequence[Gpu]
    source: str
    absent: str | None

    def document(self) -> dict[str, Any]:
        """Give it as `version --json` tells it: what is not there is null, with the reason under `absent`."""
        told = {"cuda_runtime": self.cuda, "driver": self.driver, "devices": self.gpus}
        absent = {name: None if value else self.absent for name, value in told.items()}
        return {**told, "cuda_devices": len(self.gpus), "cuda_devices_source": self.source, "absent": absent}


def installed() -> Installed:
    """Ask the driver of this machine, where there is one."""
    visible = os.environ.get(VISIBLE)
    source = _source(visible)
    try:
        with driver() as nvml:
            gpus = visible_gpus(nvml, visible)
            absent = None if gpus else f"{source} show no GPU"
            return Installed(nvml.driver_version(), nvml.cuda_version(), gpus, source, absent)
    except NvmlError as error:
        return Installed(None, None, (), str(error), str(error))


def visible_gpus(nvml: Nvml, visible: str | None) -> Sequence[Gpu]:
    """Give the GPUs that a value of CUDA_VISIBLE_DEVICES leaves (None: all). Errors: NvmlError."""
    gpus = nvml.gpus()
    return gpus if visible is None else [_named(name, gpus, nvml) for name in _valid_names(len(gpus), visible)]


def _named(name: str, gpus: Sequence[Gpu], nvml: Nvml) -> Gpu:
    """Give the GPU of a name in CUDA_VISIBLE_DEVICES: a number, the beginning of a UUID, or a slice's UUID."""
    if name.isdecimal():
        return gpus[int(name)]
    return next((gpu for gpu in gpus if gpu.uuid.startswith(name)), None) or nvml.gpu(name)


def driver_version() -> tuple[str | None, str | None]:
    """Give the version of the driver as NVML has it, or None and why there is none."""
    try:
        with driver() as nvml:
            return nvml.driver_version(), None
    except NvmlError as error:
        return None, str(error)


def visible_devices(count: int, visible: str) -> int:
    """Give how many of `count` devices CUDA_VISIBLE_DEVICES leaves: as CUDA does, up to the first name that is none."""
    return min(count, len(_valid_names(count, visible)))


def _valid_names(count: int, visible: str) -> list[str]:
    names = [part.strip() for part in visible.split(",")]
    return [
        *takewhile(lambda name: int(name) < count if name.isdecimal() else name.startswith(("GPU-", "MIG-")), names)
    ]
