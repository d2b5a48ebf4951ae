import pytest
import torch

from trainwright.device import cuda_devices
from trainwright.sensors import MAXIMUM_AGE_SECONDS, Utilisation

GPUS, WHY = cuda_devices()


def test_a_cpu_has_no_gpu_utilisation_and_says_so() -> None:
    sensor = Utilisation(torch.device("cpu"))
    assert sensor() is None
    assert sensor.absent == "device cpu has no GPU utilisation"


@pytest.mark.skipif(GPUS > 0, reason="a driver is here; this is what happens without one")
def test_without_a_driver_the_value_is_null_and_the_reason_is_nvmls_own() -> None:
    sensor = Utilisation(torch.device("cuda:0"))
    assert sensor() is None
    assert sensor.absent is not None
    assert sensor.absent == WHY
    assert sensor.absent.startswith("NVML: ")


@pytest.mark.skipif(GPUS > 0, reason="NVML is here and does not fail")
def test_a_sensor_that_fails_while_it_is_in_use_is_absent_from_there_on_and_says_so_once() -> None:
    told: list[str] = []
    sensor = Utilisation(torch.device("cpu"), clock=lambda: 0.0, on_lost=told.append)
    sensor._handle, sensor.absent = object(), None
    assert [sensor(), sensor()] == [None, None]
    assert told == [sensor.absent]
    assert told[0].startswith("NVML: ")


@pytest.mark.skipif(GPUS == 0, reason="no CUDA device")
def test_a_sample_is_in_percent_and_is_kept_for_one_second_at_most() -> None:
    moments = iter([0.0, 0.5, MAXIMUM_AGE_SECONDS])
    taken = []

    class Counted(Utilisation):
        def _sample(self) -> float | None:
            taken.append(super()._sample())
            return taken[-1]

    sensor = Counted(torch.device("cuda:0"), clock=lambda: next(moments))
    assert sensor.absent is None
    for expected in (1, 1, 2):
        assert 0.0 <= (sensor() or 0.0) <= 100.0
        assert len(taken) == expected
