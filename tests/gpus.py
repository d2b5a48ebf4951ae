"""NVML as it would be on a machine with GPUs, for what needs no GPU but must hear of one."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event

from trainwright.nvml import Gpu, NvmlError, Process

UUID = "GPU-8f2c1d3e"
OTHER = "GPU-1a2b3c4d"
TWO = (Gpu(0, OTHER, "One", 81_920), Gpu(1, UUID, "Other", 81_920))


@dataclass
class FakeNvml:
    """`on` gives the processes of a GPU; samples after `fails_after` fail. `enough` is set with sample `awaited`."""

    on: dict[str, Sequence[Process]] = field(default_factory=dict)
    utilisation: float | None = 93.0
    power: float | None = 512.25
    temperature: float | None = 61.0
    fails_after: int | None = None
    awaited: int = 1
    enough: Event = field(default_factory=Event)
    samples: int = 0

    def count(self) -> int:
        return len(TWO)

    def gpus(self) -> Sequence[Gpu]:
        return TWO

    def gpu(self, uuid: str) -> Gpu:
        found = [gpu for gpu in TWO if gpu.uuid == uuid]
        if not found:
            raise NvmlError("NVML: Not Found")
        return found[0]

    def processes(self, uuid: str) -> Sequence[Process]:
        self.samples += 1
        if self.samples >= self.awaited:
            self.enough.set()
        if self.fails_after is not None and self.samples > self.fails_after:
            raise NvmlError("NVML: GPU is lost")
        return self.on.get(uuid, ())

    def utilisation_pct(self, uuid: str) -> float | None:
        return self.utilisation

    def power_w(self, uuid: str) -> float | None:
        return self.power

    def temperature_c(self, uuid: str) -> float | None:
        return self.temperature

    def driver_version(self) -> str:
        return "570.86.15"

    def cuda_version(self) -> str:
        return "12.8"
