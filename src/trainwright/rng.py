"""The random streams of a process (Python, NumPy, torch on each device in use) as entries of a state."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch

from trainwright.errors import DamagedCheckpointError
from trainwright.state import State, StateValue, require, require_tensor, with_prefix


def seed_everything(seed: int) -> None:
    """Seed every stream from one number."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  user code draws from the global stream
    torch.manual_seed(seed)


def capture(device: torch.device) -> dict[str, StateValue]:
    """Give every stream: `python`, `numpy`, `torch`, `cuda` for the device in use, whose type is `device`."""
    version, internal, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002  as above
    streams: dict[str, StateValue] = {
        "python": [version, list(internal), gauss],
        "numpy": [str(name), [int(key) for key in np.asarray(keys)], int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
        "device": device.type,
    }
    if device.type == "cuda":
        streams["cuda"] = torch.cuda.get_rng_state(device)
    return streams


def restore(streams: State, device: torch.device) -> None:
    """Set every stream. Errors: DamagedCheckpointError that names the entry that is missing or damaged.

    A state from a CPU has no CUDA stream, so on CUDA that one stays as it is; one from CUDA is not needed on a CPU.
    """
    named = with_prefix("rng", streams)
    python, array = cast("Any", require(named, "rng.python")), cast("Any", require(named, "rng.numpy"))
    cpu = require_tensor(named, "rng.torch")
    setters: dict[str, Callable[[], object]] = {
        "python": lambda: random.setstate((python[0], tuple(python[1]), python[2])),
        "numpy": lambda: np.random.set_state((array[0], np.array(array[1], np.uint32), *array[2:])),  # noqa: NPY002  as above
        "torch": lambda: torch.set_rng_state(cpu),
    }
    if device.type == "cuda" and streams.get("device") != "cpu":
        cuda = require_tensor(named, "rng.cuda")
        setters["cuda"] = lambda: torch.cuda.set_rng_state(cuda, device)
    for name, setter in setters.items():
        try:
            setter()
        except (TypeError, ValueError, RuntimeError, LookupError, ArithmeticError) as error:
            raise DamagedCheckpointError(f"entry 'rng.{name}' of the checkpoint is damaged: {error}") from error


@contextmanager
def preserved(device: torch.device) -> Iterator[None]:
    """Leave every stream as it was found."""
    streams = capture(device)
    try:
        yield
    finally:
        restore(streams, device)
