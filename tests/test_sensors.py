import pytest
import torch

from tests.gpus import UUID, FakeNvml
from trainwright.device import cuda_devices
from trainwright.nvml import NvmlError
from trainwright.sensors import MAXIMUM_AGE_SECONDS, NoSensor, Sensor, Utilisation, open_sensor

GPUS, WHY = cuda_devices()
CUDA = torch.device("cuda:0")


class Failing(FakeNvml):
    def utilisation_pct(self, uuid: str) -> float | None:
        raise NvmlError("NVML: GPU is lost")


def test_a_cpu_has_no_gpu_utilisation_and_says_so() -> None:
    sensor = Utilisation(open_sensor(torch.device("cpu"), connect=lambda: pytest.fail("NVML was asked")))
    assert sensor() is None
    assert sensor.absent == "device cpu has no GPU utilisation"


@pytest.mark.skipif(GPUS > 0, reason="a driver is here; this is what happens without one")
def test_without_a_driver_the_value_is_null_and_the_reason_is_nvmls_own() -> None:
    sensor = Utilisation(open_sensor(CUDA))
    assert sensor() is None
    assert sensor.absent is not None
    assert sensor.absent == WHY
    assert sensor.absent.startswith("NVML: ")


@pytest.mark.parametrize(
    ("nvml", "reason"), [(Failing(), "NVML: GPU is lost"), (FakeNvml(utilisation=None), "NVML: Not Supported")]
)
def test_a_sensor_that_fails_while_it_is_in_use_is_absent_from_there_on_and_says_so_once(
    nvml: FakeNvml, reason: str
) -> None:
    told: list[str] = []
    sensor = Utilisation(Sensor(nvml, UUID), on_lost=told.append)
    assert sensor.absent is None
    assert [sensor(), sensor()] == [None, None]
    assert told == [sensor.absent] == [reason]


def test_a_device_that_nvml_does_not_know_has_no_sensor() -> None:
    assert open_sensor(CUDA, connect=FakeNvml, name=lambda _: "GPU-none") == NoSensor("NVML: Not Found")
    nvml = FakeNvml()
    assert open_sensor(CUDA, connect=lambda: nvml, name=lambda _: UUID) == Sensor(nvml, UUID)


def test_a_sample_is_kept_for_one_second_at_most() -> None:
    moments = iter([0.0, 0.5, MAXIMUM_AGE_SECONDS])
    nvml = FakeNvml(utilisation=93.0)
    sensor = Utilisation(Sensor(nvml, UUID), clock=lambda: next(moments))
    first = sensor()
    nvml.utilisation = 12.0
    assert (first, sensor(), sensor()) == (93.0, 93.0, 12.0)


@pytest.mark.skipif(GPUS == 0, reason="no CUDA device")
def test_a_sample_of_a_gpu_is_in_percent() -> None:
    sensor = Utilisation(open_sensor(CUDA))
    assert sensor.absent is None
    assert 0.0 <= (sensor() or 0.0) <= 100.0
