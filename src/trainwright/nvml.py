"""NVML, the driver's own sensors: the one border to pynvml. What the driver does not tell is None, never a number."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePath
from typing import Protocol, TypeVar, final

from trainwright.errors import DeviceUnavailableError

ValueT = TypeVar("ValueT")
BYTES_PER_MIB = 1 << 20


class NvmlError(DeviceUnavailableError):
    """NVML is not there, or a call of it failed; the text is its own."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or a slice of one. `index` is NVML's, which need not be CUDA's."""

    index: int
    uuid: str
    name: str
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Process:
    """A process on a GPU. `pid` is the host's; `name` is that of the program alone, without its arguments."""

    pid: int
    name: str | None
    used_mib: float | None


class Nvml(Protocol):
    """What is asked of the driver; GPUs are named by UUID. Every call may raise NvmlError."""

    def count(self) -> int: ...
    def gpus(self) -> Sequence[Gpu]: ...
    def gpu(self, uuid: str) -> Gpu: ...
    def processes(self, uuid: str) -> Sequence[Process]: ...
    def utilisation_pct(self, uuid: str) -> float | None: ...
    def power_w(self, uuid: str) -> float | None: ...
    def temperature_c(self, uuid: str) -> float | None: ...
    def driver_version(self) -> str: ...
    def cuda_version(self) -> str:
        """Give the newest CUDA that the driver runs, as 12.8."""


@final
class Driver:
    """NVML of this machine. Errors: NvmlError, when there is no driver."""

    def __init__(self) -> None:
        import pynvml

        with _told():
            pynvml.nvmlInit()

    def close(self) -> None:
        import pynvml

        with _told():
            pynvml.nvmlShutdown()

    def count(self) -> int:
        import pynvml

        with _told():
            return int(pynvml.nvmlDeviceGetCount())

    def gpus(self) -> Sequence[Gpu]:
        import pynvml

        with _told():
            return [_gpu(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(self.count())]

    def gpu(self, uuid: str) -> Gpu:
        with _told():
            return _gpu(_handle(uuid))

    def processes(self, uuid: str) -> Sequence[Process]:
        import pynvml

        with _told():
            found = pynvml.nvmlDeviceGetComputeRunningProcesses(_handle(uuid))
        return [Process(int(one.pid), _program(one.pid), _mib(one.usedGpuMemory)) for one in found]

    def utilisation_pct(self, uuid: str) -> float | None:
        import pynvml

        with _told():
            return _if_supported(lambda: float(pynvml.nvmlDeviceGetUtilizationRates(_handle(uuid)).gpu))

    def power_w(self, uuid: str) -> float | None:
        import pynvml

        with _told():
            return _if_supported(lambda: pynvml.nvmlDeviceGetPowerUsage(_handle(uuid)) / 1000)

    def temperature_c(self, uuid: str) -> float | None:
        import pynvml

        with _told():
            return _if_supported(
                lambda: float(pynvml.nvmlDeviceGetTemperature(_handle(uuid), pynvml.NVML_TEMPERATURE_GPU))
            )

    def driver_version(self) -> str:
        import pynvml

        with _told():
            return str(pynvml.nvmlSystemGetDriverVersion())

    def cuda_version(self) -> str:
        import pynvml

        with _told():
            number = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
        return f"{number // 1000}.{number % 1000 // 10}"


@contextmanager
def driver() -> Iterator[Nvml]:
    """Give the driver of this machine while it is asked. Errors: NvmlError, when there is none."""
    opened = Driver()
    try:
        yield opened
    finally:
        opened.close()


@contextmanager
def _told() -> Iterator[None]:
    import pynvml

    try:
        yield
    except pynvml.NVMLError as error:
        raise NvmlError(f"NVML: {error}") from error


def _handle(uuid: str) -> object:
    import pynvml

    return pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())


def _gpu(handle: object) -> Gpu:
    import pynvml

    return Gpu(
        index=int(pynvml.nvmlDeviceGetIndex(handle)),
        uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
        name=str(pynvml.nvmlDeviceGetName(handle)),
        memory_mib=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) // BYTES_PER_MIB,
    )


def _if_supported(read: Callable[[], ValueT]) -> ValueT | None:
    import pynvml

    try:
        return read()
    except pynvml.NVMLError_NotSupported:
        return None


def _program(pid: int) -> str | None:
    """Give the file name of a process's program, or None for one that has gone or is not ours to see."""
    import pynvml

    try:
        return program_of(str(pynvml.nvmlSystemGetProcessName(pid)))
    except pynvml.NVMLError:
        return None


def program_of(command: str) -> str | None:
    """Give the file name of a command's first word: what follows it may hold anything, a secret too."""
    words = command.split()
    return PurePath(words[0]).name or None if words else None


def _mib(size_bytes: int | None) -> float | None:
    return None if size_bytes is None else size_bytes / BYTES_PER_MIB
