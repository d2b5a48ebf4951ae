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
    """Give every stream: `python`, `numpy`, `torch`, and `cuda` for the device in use."""
    version, internal, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002  as above
    streams: dict[str, StateValue] = {
        "python": [version, list(internal), gauss],
        "numpy": [str(name), [int(key) for key in np.asarray(keys)], int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        streams["cuda"] = torch.cuda.get_rng_state(device)
    return streams


def restore(streams: State, device: torch.device) -> None:
    """Set every stream. Errors: DamagedCheckpointError that names the entry that is missing or damaged."""
    named = with_prefix("rng", streams)
    python, array = cast("Any", require(named, "rng.python")), cast("Any", require(named, "rng.numpy"))
    cpu = require_tensor(named, "rng.torch")
    setters: dict[str, Callable[[], object]] = {
        "python": lambda: random.setstate((python[0], tuple(python[1]), python[2])),
        "numpy": lambda: np.random.set_state((array[0], np.array(array[1], np.uint32), *array[2:])),  # noqa: NPY002  as above
        "torch": lambda: torch.set_rng_state(cpu),
    }
    for name, setter in setters.items():
        try:
            setter()
        except (TypeError, ValueError, RuntimeError, LookupError, ArithmeticError) as error:
            raise DamagedCheckpointError(f"entry 'rng.{name}' of the checkpoint is damaged: {error}") from error
    if device.type == "cuda" and "cuda" in streams:
        torch.cuda.set_rng_state(require_tensor(streams, "cuda"), device)


@contextmanager
def preserved(device: torch.device) -> Iterator[None]:
    """Leave every stream as it was found."""
    streams = capture(device)
    try:
        yield
    finally:
        restore(streams, device)
