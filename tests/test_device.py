import pytest

from trainwright import device
from trainwright.errors import DeviceUnavailableError, InputError


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide what GPUs there may be, as CUDA itself does it."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.parametrize("spec", ["cpu", "cuda", "auto", *(f"cuda:{index}" for index in range(16))])
def test_a_device_name_of_the_grammar_is_accepted(spec: str) -> None:
    assert device.check_grammar(spec) == spec


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "gpu",
        "CUDA",
        "Cpu",
        "cuda:16",
        "cuda:01",
        "cuda:-1",
        "cuda:",
        "cuda:1 ",
        "cpu\n",
        "cpu:0",
        "auto:0",
        "cuda:١",
    ],
)
def test_any_other_name_is_refused_with_the_grammar(spec: str) -> None:
    with pytest.raises(InputError) as caught:
        device.resolve(spec)
    assert repr(spec) in str(caught.value)
    assert device.GRAMMAR in str(caught.value)


def test_the_cpu_is_there_without_a_notice() -> None:
    assert device.resolve("cpu") == device.Device("cpu", notice=None)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("spec", ["cuda", "cuda:0", "cuda:15"])
def test_an_explicit_cuda_device_that_is_not_there_is_refused_never_replaced(spec: str) -> None:
    with pytest.raises(DeviceUnavailableError, match=f"device '{spec}' was asked for, and this machine shows 0 CUDA"):
        device.resolve(spec)


@pytest.mark.usefixtures("no_gpu")
def test_auto_without_a_gpu_is_the_cpu_with_one_notice() -> None:
    found = device.resolve("auto")
    assert (found.name, found.notice) == ("cpu", device.AUTO_NOTICE)


@pytest.mark.usefixtures("no_gpu")
def test_the_refusal_says_how_the_devices_were_counted() -> None:
    count, reason = device.cuda_devices()
    assert count == 0
    assert reason.startswith("NVML")


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("", 0),
        ("-1", 0),
        ("0", 1),
        ("1,0", 2),
        ("0, 1,2,3", 4),
        ("0,-1,1", 1),
        ("7", 0),
        ("0,7,1", 1),
        ("GPU-8f2c,MIG-1a2b", 2),
        ("none", 0),
    ],
)
def test_visible_devices_end_at_the_first_name_that_is_none(visible: str, expected: int) -> None:
    assert device.visible_devices(4, visible) == expected
