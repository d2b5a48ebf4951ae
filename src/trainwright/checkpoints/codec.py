"""A state as files and back: tensors as safetensors, a file a group; everything else as JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors

from trainwright.checkpoints.tensorfile import TYPES, parts_of
from trainwright.errors import DamagedCheckpointError, InputError
from trainwright.state import Segment, State, StateValue

GROUPS = ("model", "optimizer")  # their tensors get files of their own, with names that other tools read
REST = "rest"
JSON_FILE = "state.json"
RESERVED = "__metadata__"  # safetensors keeps this name for itself


@dataclass(frozen=True, slots=True)
class Encoded:
    """A state as file name → its bytes in parts, and the segments that it shares. Parts are views of the tensors."""

    files: Mapping[str, Sequence[bytes | memoryview]]
    segments: Mapping[str, Segment]

    def joined(self) -> dict[str, bytes]:
        """Give the files whole, and nothing in them shared with the state."""
        return {name: b"".join(parts) for name, parts in self.files.items()}


def encode(state: State) -> Encoded:
    """Turn a state into files. Equal states give equal bytes; a tuple among JSON values comes back as a list.

    Errors: InputError naming an entry that no file can hold as it is.
    """
    groups: dict[str, dict[str, torch.Tensor]] = {group: {} for group in (*GROUPS, REST)}
    values: dict[str, Any] = {}
    segments: dict[str, Segment] = {}
    for name, value in state.items():
        group, _, rest = name.partition(".")
        if isinstance(value, Segment):
            segments[name] = value
        elif not isinstance(value, torch.Tensor):
            values[name] = value
        elif group in GROUPS and rest:
            groups[group][rest] = value
        else:
            groups[REST][name] = value
    files = {
        f"{group}.safetensors": parts_of(_storable(group, tensors)) for group, tensors in groups.items() if tensors
    }
    return Encoded({**files, JSON_FILE: [_json(values)]}, segments)


def _storable(group: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Give contiguous tensors on the CPU, none sharing memory with another (a file holds each tensor once)."""
    seen: set[int] = set()
    ready: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if name == RESERVED or tensor.dtype not in TYPES or tensor.layout is not torch.strided:
            raise InputError(
                f"the state's tensor {name!r} of {group!r} ({tensor.dtype}, {tensor.layout}) cannot be stored; "
                f"expected a dense tensor of a type that safetensors knows, under a name other than {RESERVED!r}"
            )
        plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        pointer = plain.untyped_storage().data_ptr()
        ready[name] = plain.clone() if pointer in seen else plain
        seen.add(pointer)
    return ready


def _json(values: Mapping[str, Any]) -> bytes:
    entries = (f"{json.dumps(name)}:{_text(name, value)}" for name, value in sorted(values.items()))
    return f"{{{','.join(entries)}}}".encode()


def _text(name: str, value: Any) -> str:
    try:
        if not _keys_are_text(value):
            raise TypeError("a key of a mapping is no text")  # noqa: TRY301  told together with what json finds
        return json.dumps(value, allow_nan=False, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"the state's entry {name!r} holds what JSON cannot: {error}; give tensors, segments, finite numbers, text"
        ) from error


def _keys_are_text(value: Any) -> bool:
    """JSON would turn any other key into text, and the state that comes back would not be the one that was saved."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _keys_are_text(item) for key, item in value.items())
    return not isinstance(value, list | tuple) or all(map(_keys_are_text, value))


def decode(files: Mapping[str, bytes], segments: Mapping[str, Segment]) -> dict[str, StateValue]:
    """Turn files back into a state. Errors: DamagedCheckpointError naming the file that does not parse."""
    state: dict[str, StateValue] = dict(segments)
    for file, data in files.items():
        group = file.removesuffix(".safetensors")
        try:
            if file == JSON_FILE:
                state.update(json.loads(data))
            else:
                prefix = f"{group}." if group in GROUPS else ""
                state.update({prefix + name: tensor for name, tensor in load_tensors(data).items()})
        except (SafetensorError, ValueError, TypeError, KeyError) as error:
            raise DamagedCheckpointError(f"{file}: does not parse: {error}") from error
    return state


def segment_bytes(segment: Segment) -> bytes:
    return b"".join(parts_of({"data": torch.from_numpy(np.array(segment.array))}))


def segment_of(data: bytes, name: str) -> Segment:
    """Errors: DamagedCheckpointError with `name` when the bytes are no segment."""
    try:
        return Segment(load_tensors(data)["data"].numpy())
    except (SafetensorError, KeyError, TypeError) as error:
        raise DamagedCheckpointError(f"{name}: does not parse: {error}") from error
