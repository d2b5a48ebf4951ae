"""Digests of tensors: of a weight by a sample, of a batch whole, of a batch row by row. Equal bytes, equal digests."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

import torch
from torch import Tensor

from trainwright.equality import entries_of

SAMPLED: Final = 4_096  # elements of a tensor that its fingerprint reads
DIGEST_BYTES: Final = 16


def sampled(tensor: Tensor) -> Tensor:
    """Give up to 4,096 elements at a fixed stride, 1-d. The stride is odd, so that no matrix is read in one column."""
    flat = tensor.detach().reshape(-1)
    return flat[:: -(-len(flat) // SAMPLED) | 1]


def fingerprints(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Digest the sample of each tensor; a change that no sampled element shows is not seen."""
    return {name: digest([sampled(tensor)]) for name, tensor in tensors.items()}


def tensors_of(batch: Any) -> list[Tensor]:
    """Give every tensor of a nested batch, in its order, as `equality.entries_of` walks it."""
    return [value for value in entries_of(batch).values() if isinstance(value, Tensor)]


def on_host(tensor: Tensor) -> Tensor:
    """Copy to the host. A CUDA device is not waited for: the copy is whole once a later mark of its clock is past."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return copy.copy_(tensor.detach(), non_blocking=tensor.is_cuda)


def digest(tensors: Sequence[Tensor]) -> str:
    """Digest types, shapes and every byte."""
    hashed = blake2b(digest_size=DIGEST_BYTES)
    for tensor in tensors:
        hashed.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
        hashed.update(_bytes_of(tensor.reshape(1, -1)).tobytes())
    return hashed.hexdigest()


def row_digests(tensors: Sequence[Tensor]) -> list[bytes] | None:
    """Digest each row: its index of the first dimension, over all tensors that have one; None where these differ."""
    parts = [tensor for tensor in tensors if tensor.dim() and tensor.numel()]
    if len({len(part) for part in parts}) != 1:
        return None
    arrays = [_bytes_of(part.reshape(len(part), -1)) for part in parts]
    rows = (b"".join(array[index].tobytes() for array in arrays) for index in range(len(parts[0])))
    return [blake2b(row, digest_size=DIGEST_BYTES).digest() for row in rows]


def _bytes_of(matrix: Tensor) -> Any:
    """Give a 2-d array of bytes, a row for a row."""
    return matrix.detach().cpu().contiguous().view(torch.uint8).numpy()
