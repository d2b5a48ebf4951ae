import random
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from trainwright import rng
from trainwright.errors import DamagedCheckpointError
from trainwright.state import StateValue

CPU = torch.device("cpu")
STREAMS = ("python", "numpy", "torch")


@pytest.fixture(autouse=True)
def _streams_as_before() -> Iterator[None]:
    with rng.preserved(CPU):
        yield


def draws() -> list[float]:
    """Draw from every stream, of each kind that keeps something for the next draw."""
    numbers = [random.random(), random.gauss(0.0, 1.0), float(np.random.rand()), float(np.random.randn())]  # noqa: NPY002  the global stream is what is tested
    return [*numbers, torch.rand(()).item(), torch.randn(()).item()]


def test_equal_seeds_give_equal_streams_and_other_seeds_others() -> None:
    for seed in (0, 7, 2**40):
        rng.seed_everything(seed)
        first = draws()
        rng.seed_everything(seed)
        assert draws() == first
    rng.seed_everything(8)
    assert not set(draws()) & set(first)


def test_every_stream_goes_on_where_it_was_captured_in_the_middle_of_a_pair() -> None:
    rng.seed_everything(1)
    draws()
    streams = rng.capture(CPU)
    expected = [draws(), draws()]
    rng.restore(streams, CPU)
    assert [draws(), draws()] == expected


def test_the_streams_survive_json() -> None:
    rng.seed_everything(2)
    draws()
    streams = rng.capture(CPU)
    expected = draws()
    for name in ("python", "numpy"):
        streams[name] = msgspec.json.decode(msgspec.json.encode(streams[name]))
    rng.restore(streams, CPU)
    assert draws() == expected


@pytest.mark.parametrize("name", STREAMS)
def test_a_missing_stream_is_an_error_that_names_it(name: str) -> None:
    streams = rng.capture(CPU)
    del streams[name]
    with pytest.raises(DamagedCheckpointError, match=f"'rng.{name}'"):
        rng.restore(streams, CPU)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("python", None),
        ("python", {}),
        ("python", [3, [1, 2], None]),
        ("python", [3, [-1] * 625, None]),
        ("python", ["three", [], None]),
        ("numpy", "MT19937"),
        ("numpy", {}),
        ("numpy", ["PCG64", [0] * 624, 0, 0, 0.0]),
        ("numpy", ["MT19937", [0] * 3, 0, 0, 0.0]),
        ("numpy", ["MT19937", [-1] * 624, 0, 0, 0.0]),
        ("torch", [1, 2]),
        ("torch", torch.zeros(7, dtype=torch.uint8)),
        ("torch", torch.zeros(5056)),
    ],
)
def test_a_damaged_stream_is_an_error_that_names_it(name: str, value: StateValue) -> None:
    with pytest.raises(DamagedCheckpointError, match=f"'rng.{name}'"):
        rng.restore({**rng.capture(CPU), name: value}, CPU)


CUDA = torch.device("cuda")


def test_a_state_from_cuda_goes_on_on_a_cpu_which_has_no_use_for_that_stream() -> None:
    rng.seed_everything(3)
    streams: Any = {**rng.capture(CPU), "cuda": torch.zeros(16, dtype=torch.uint8), "device": "cuda"}
    expected = draws()
    rng.restore(streams, CPU)
    assert draws() == expected


@pytest.mark.parametrize("made_on", ["cuda", None])
def test_a_state_from_cuda_that_lost_its_stream_is_refused_on_cuda_and_no_stream_moves(made_on: str | None) -> None:
    streams: Any = {**rng.capture(CPU), "device": made_on}
    rng.seed_everything(5)
    before: Any = rng.capture(CPU)
    with pytest.raises(DamagedCheckpointError, match=r"'rng\.cuda'"):
        rng.restore({name: value for name, value in streams.items() if value is not None}, CUDA)
    assert torch.equal(rng.capture(CPU)["torch"], before["torch"])  # type: ignore[arg-type]  # a tensor


def test_a_state_from_a_cpu_has_no_stream_of_cuda_to_miss() -> None:
    rng.seed_everything(4)
    streams = rng.capture(CPU)
    assert (streams["device"], "cuda" in streams) == ("cpu", False)
    expected = draws()
    rng.restore(streams, CUDA)
    assert draws() == expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_the_stream_of_cuda_goes_on_and_a_damaged_one_is_named() -> None:
    streams = rng.capture(CUDA)
    expected = torch.rand(3, device=CUDA).tolist()
    rng.restore(streams, CUDA)
    assert torch.rand(3, device=CUDA).tolist() == expected
    with pytest.raises(DamagedCheckpointError, match=r"'rng\.cuda'"):
        rng.restore({**streams, "cuda": torch.zeros(7, dtype=torch.uint8)}, CUDA)


def test_what_is_drawn_inside_leaves_the_streams_as_they_were() -> None:
    before: Any = rng.capture(CPU)
    with rng.preserved(CPU):
        draws()
    with pytest.raises(ZeroDivisionError), rng.preserved(CPU):
        rng.seed_everything(9 // len(draws()[:0]))
    after: Any = rng.capture(CPU)
    assert torch.equal(after.pop("torch"), before.pop("torch"))
    assert after == before
