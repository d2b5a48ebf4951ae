"""The safetensors format, written without a copy: a header, then the memory of the tensors as it lies.

The library's own `save` gives one block of bytes, and so takes the memory of a whole file again.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

ALIGNMENT: Final = 8  # bytes; spaces fill the header up to it
TYPES: Final = {  # in the order in which the format's writer lays tensors down, the widest first
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ORDER: Final = {kind: place for place, kind in enumerate(TYPES)}


def parts_of(tensors: Mapping[str, Tensor]) -> Sequence[bytes | memoryview]:
    """Give the file of these tensors in parts, byte for byte what `safetensors.torch.save` gives.

    The tensors are contiguous, in host memory and of `TYPES`; the parts are views of them, so they must stay as they
    are until the parts are written.
    """
    names = sorted(tensors, key=lambda name: (_ORDER[tensors[name].dtype], name.encode()))
    header, end = {}, 0
    for name in names:
        tensor = tensors[name]
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return [len(text).to_bytes(8, "little") + text, *(_memory(tensors[name]) for name in names)]


def _memory(tensor: Tensor) -> memoryview:
    if not tensor.nbytes:  # one without elements may have strides that allow no other view
        return memoryview(b"")
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data
