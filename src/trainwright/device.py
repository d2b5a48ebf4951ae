"""Device names: their grammar, and whether the device is there, decided without importing torch."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile

from trainwright.errors import DeviceUnavailableError, InputError

GRAMMAR = "^(cpu|cuda(:[0-9]|:1[0-5])?|auto)$"
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
    import os

    import pynvml

    try:
        with _nvml():
            count = int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as error:
        return 0, f"NVML: {error}"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return count, "NVML"
    return visible_devices(count, visible), f"NVML and CUDA_VISIBLE_DEVICES={visible}"


def driver_version() -> tuple[str | None, str | None]:
    """Give the version of the driver as NVML has it, or None and why there is none."""
    import pynvml

    try:
        with _nvml():
            return str(pynvml.nvmlSystemGetDriverVersion()), None
    except pynvml.NVMLError as error:
        return None, f"NVML: {error}"


@contextmanager
def _nvml() -> Iterator[None]:
    import pynvml

    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def visible_devices(count: int, visible: str) -> int:
    """Give how many of `count` devices CUDA_VISIBLE_DEVICES leaves: as CUDA does, up to the first name that is none."""
    names = [part.strip() for part in visible.split(",")]
    valid = takewhile(lambda name: int(name) < count if name.isdecimal() else name.startswith(("GPU-", "MIG-")), names)
    return min(count, len(list(valid)))
