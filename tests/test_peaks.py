import pytest

from tests.acceptance import harness
from tests.contract.facts_tables import result_of_shipped
from tests.toys import toy
from trainwright.budget import loop_settings
from trainwright.config import RunConfig
from trainwright.peaks import TENSOR_TFLOPS, peak_flops
from trainwright.records import environment_record
from trainwright.sensors import NoSensor


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA H200", 989.4),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA GH200 480GB", 989.4),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 312.0),
        ("NVIDIA B200", 2_250.0),
        ("NVIDIA GB200", 2_500.0),
        ("NVIDIA L40S", 362.1),
        ("NVIDIA L4", 121.0),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("Tesla V100-SXM2-16GB", 125.0),
        ("Tesla V100S-PCIE-32GB", 130.0),
        ("Tesla T4", 65.0),
    ],
)
def test_a_device_is_known_by_the_name_that_its_driver_gives(name: str, tflops: float) -> None:
    assert peak_flops(name) == pytest.approx(tflops * 1e12)


@pytest.mark.parametrize("name", ["cpu", "", "NVIDIA Graphics Device", "XL4", "T400", "NVIDIA A100X"])
def test_a_device_that_is_not_in_the_table_has_no_peak_that_is_known(name: str) -> None:
    assert peak_flops(name) is None


def test_no_name_of_the_table_hides_another() -> None:
    assert [name for name, tflops in TENSOR_TFLOPS.items() if peak_flops(f"NVIDIA {name}") != tflops * 1e12] == []


def test_a_run_records_what_an_item_costs_and_the_peak_of_its_device_or_that_they_are_unknown() -> None:
    config, trainable = RunConfig.parse(harness.config()), toy()
    settings, sensor = loop_settings(config, trainable), NoSensor("not asked")
    record = environment_record(config, trainable, settings, sensor, explicit={}, target=None)
    told = {name: record[name] for name in ("flops_per_item", "flops_known", "peak_flops", "peak_known")}
    assert told == {"flops_per_item": None, "flops_known": False, "peak_flops": None, "peak_known": False}


def test_a_device_that_no_table_knows_is_not_judged_by_its_peak() -> None:
    taken = {"tokens": 8192.0, "wall_ms": 1.0}
    for device, expected in (("NVIDIA H200", "fail"), ("cpu", "not_applicable")):
        peak = peak_flops(device)
        environment = {"flops_known": True, "peak_known": peak is not None, "flops_per_item": 2e9, "peak_flops": peak}
        assert result_of_shipped("GATE-TRAIN-FLOPS", steps=taken, environment=environment) == expected
