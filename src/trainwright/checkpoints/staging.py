"""A copy of a state that stays as it is while training goes on."""

from typing import Final, TypeGuard, final

import torch
from torch import Tensor

from trainwright.state import State, StateValue

PINNED: Final = "cuda"  # a copy from such a device is quick into memory that the system cannot move


@final
class Staging:
    """Copies states into buffers in host memory, which are allocated at the first copy and used again by the next.

    So a copy is good until the next one is made. It takes as much host memory as the tensors of a state.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def copy(self, state: State) -> State:
        """Give the state with every dense tensor copied; segments are immutable, and all else is given as it is."""
        tensors = {name: value for name, value in state.items() if _is_dense(value)}
        self._buffers = {name: self._copied(name, tensor) for name, tensor in tensors.items()}
        for device in {tensor.device for tensor in tensors.values() if tensor.device.type == PINNED}:
            torch.cuda.synchronize(device)
        return {**state, **self._buffers}

    def _copied(self, name: str, tensor: Tensor) -> Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or (buffer.shape, buffer.dtype) != (tensor.shape, tensor.dtype):
            pinned = tensor.device.type == PINNED
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
        return buffer.copy_(tensor.detach(), non_blocking=True)


def _is_dense(value: StateValue) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.layout is torch.strided
