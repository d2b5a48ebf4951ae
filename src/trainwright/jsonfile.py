"""A JSON file: written whole or not at all, read as what it should be."""

from pathlib import Path
from typing import Any

import msgspec

from trainwright.errors import InputError
from trainwright.files import write_atomically


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def read_json(path: Path, kind: Any = dict[str, Any]) -> Any:
    """Read one JSON file as `kind`. Errors: InputError with the file when it is missing or is something else."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise InputError(f"{path}: is not what it should be: {error}") from error
