import pytest

from tests.gpus import OTHER, TWO, UUID, FakeNvml
from trainwright.device import Installed, cuda_devices, installed, visible_gpus
from trainwright.errors import DeviceUnavailableError
from trainwright.nvml import Driver, NvmlError, driver, program_of

GPUS, _ = cuda_devices()


@pytest.mark.skipif(GPUS > 0, reason="a driver is here; this is what happens without one")
def test_without_a_driver_the_librarys_own_error_is_told_as_ours() -> None:
    with pytest.raises(NvmlError, match=r"^NVML: .*(Not Found|Not Loaded)"):
        Driver()
    with pytest.raises(DeviceUnavailableError), driver():
        pytest.fail("there is no driver to ask")


@pytest.mark.skipif(GPUS > 0, reason="a driver is here; this is what happens without one")
def test_a_machine_without_a_driver_has_nothing_installed_and_the_reason() -> None:
    found = installed()
    assert (found.driver, found.cuda, list(found.gpus)) == (None, None, [])
    assert found.absent is not None
    assert found.absent.startswith("NVML: ")


def test_what_is_not_installed_is_null_beside_the_reason() -> None:
    reasons = {"cuda_runtime": "no driver", "driver": "no driver", "devices": "no driver"}
    told = Installed(None, None, (), "no driver", "no driver").document()
    assert (told["driver"], told["cuda_runtime"], told["cuda_devices"], told["absent"]) == (None, None, 0, reasons)
    hidden = Installed("570.86.15", "12.8", (), "NVML and CUDA_VISIBLE_DEVICES=", "none is shown").document()
    assert (hidden["driver"], hidden["cuda_runtime"]) == ("570.86.15", "12.8")
    assert hidden["absent"] == {"cuda_runtime": None, "driver": None, "devices": "none is shown"}


@pytest.mark.skipif(GPUS == 0, reason="no CUDA device")
def test_a_driver_names_its_gpus_and_gives_numbers_or_nothing() -> None:
    with driver() as nvml:
        first = nvml.gpus()[0]
        assert nvml.gpu(first.uuid) == first
        for value in (nvml.utilisation_pct(first.uuid), nvml.power_w(first.uuid), nvml.temperature_c(first.uuid)):
            assert value is None or value >= 0


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [OTHER, UUID]),
        ("1", [UUID]),
        ("1,0", [UUID, OTHER]),
        ("GPU-1a,GPU-8f", [OTHER, UUID]),
        ("", []),
        ("2", []),
    ],
)
def test_visible_gpus_are_those_of_the_variable_in_its_order(visible: str | None, expected: list[str]) -> None:
    assert [gpu.uuid for gpu in visible_gpus(FakeNvml(), visible)] == expected


def test_a_uuid_that_no_gpu_has_is_an_error_not_another_gpu() -> None:
    assert visible_gpus(FakeNvml(), UUID) == [TWO[1]]
    with pytest.raises(NvmlError):
        visible_gpus(FakeNvml(), "GPU-ffff")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/usr/bin/python train.py --token hunter2", "python"),
        ("python", "python"),
        ("", None),
        ("/", None),
    ],
)
def test_a_process_is_named_by_its_program_without_its_arguments(command: str, name: str | None) -> None:
    assert program_of(command) == name
