"""State: all that must survive, as a flat mapping of dotted name to tensor, segment or JSON value.

The first part of a name groups it: `model.*` are the weights, `optimizer.*` the optimizer, everything else
(`rng.*`, `source.*`, `loop`, …) is the rest. A checkpoint writes a file a group.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from trainwright.errors import DamagedCheckpointError
from trainwright.files import sha256_of_bytes

JsonValue: TypeAlias = "None | bool | int | float | str | list[JsonValue] | dict[str, JsonValue]"


@dataclass(frozen=True, slots=True)
class Segment:
    """An immutable copy of an array that checkpoints share (a full block of replay): stored once, by its hash."""

    array: npt.NDArray[Any] = field(compare=False)
    sha256: str = field(init=False)

    def __post_init__(self) -> None:
        frozen = np.array(self.array, order="C")
        frozen.flags.writeable = False
        object.__setattr__(self, "array", frozen)
        header = f"{frozen.dtype.str}{frozen.shape}".encode()
        object.__setattr__(self, "sha256", sha256_of_bytes(header, frozen.reshape(-1).view(np.uint8).data))


StateValue: TypeAlias = "torch.Tensor | Segment | JsonValue"
State: TypeAlias = "Mapping[str, StateValue]"


def with_prefix(prefix: str, state: State) -> dict[str, StateValue]:
    return {f"{prefix}.{name}": value for name, value in state.items()}


def under_prefix(prefix: str, state: State) -> dict[str, StateValue]:
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in state.items() if name.startswith(start)}


def weights_in(state: State) -> dict[str, torch.Tensor]:
    return {k: v for k, v in state.items() if k.startswith("model.") and isinstance(v, torch.Tensor)}


def require(state: State, name: str) -> StateValue:
    """Give the entry `name`; DamagedCheckpointError that names it when it is missing (never a silent fresh value)."""
    if name not in state:
        raise DamagedCheckpointError(f"the checkpoint holds no entry {name!r}; it cannot be resumed from")
    return state[name]


def require_tensor(state: State, name: str) -> torch.Tensor:
    value = require(state, name)
    if not isinstance(value, torch.Tensor):
        raise DamagedCheckpointError(f"entry {name!r} of the checkpoint is a {type(value).__name__}, expected a tensor")
    return value
