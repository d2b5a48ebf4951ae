"""Labelled sequences, read from a file of arrays: `.npz` or `.safetensors`.

Shapes in names: b sequences, t positions, f features, o numbers of a target.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.npyio import NpzFile
from safetensors import SafetensorError
from safetensors.numpy import load_file
from torch import Tensor

from trainwright.errors import DataError
from trainwright.files import sha256_of_file

Labels: TypeAlias = Literal["classes", "numbers"]
Array: TypeAlias = npt.NDArray[Any]

NEEDED: Final = ("x", "y", "x_validation", "y_validation")
OPTIONAL: Final = ("lengths", "lengths_validation")
LARGEST: Final = np.finfo(np.float32).max
TARGET: Final[Mapping[Labels, str]] = {"classes": "class from 0 on", "numbers": "finite number, or a row of them,"}


class SequenceBatch(NamedTuple):
    """`x`: float32 (b, t, f), or token ids (b, t); past a sequence's length it counts for nothing."""

    x: Tensor
    lengths_b: Tensor
    y: Tensor  # classes, int64 (b,), or numbers, float32 (b, o)


@dataclass(frozen=True, slots=True)
class Sequences:
    """The sequences of a file, in memory: those to train on and those held out."""

    path: Path
    train: SequenceBatch
    validation: SequenceBatch
    sha256: str

    @property
    def features(self) -> int | None:
        """Give the reals of a position; None where a position is a token."""
        return self.train.x.shape[2] if self.train.x.dim() == 3 else None

    @property
    def size_bytes(self) -> int:
        return sum(array.nbytes for part in (self.train, self.validation) for array in part)

    def kinds(self, of: Literal["x", "y"]) -> int:
        """Give one more than the largest token or class."""
        return 1 + int(max(getattr(part, of).max() for part in (self.train, self.validation)))


def load(path: Path, labels: Labels) -> Sequences:
    """Read the arrays `x`, `y`, `x_validation`, `y_validation`, and `lengths`, `lengths_validation` where they are.

    `x` is (b, t, f) of reals or (b, t) of token ids; `y` is (b,) of classes from 0, or (b,) or (b, o) of numbers;
    `lengths` tells how many positions of a sequence count, from the first on (none given: all).
    Errors: DataError that names file and array, and what was expected.
    """
    arrays = _arrays(path)
    if not set(NEEDED) <= arrays.keys() <= {*NEEDED, *OPTIONAL}:
        expected = f"{', '.join(NEEDED)}, and no others but {' and '.join(OPTIONAL)}"
        raise DataError(f"{path}: holds the arrays {', '.join(arrays) or 'of no name'}; expected {expected}")
    train, validation = (_part(path, arrays, suffix, labels) for suffix in ("", "_validation"))
    here, there = map(_kind, (train, validation))
    if here != there:
        raise DataError(f"{path}: a training sequence is of {here}, one held out of {there}; expected one kind")
    return Sequences(path, train, validation, sha256_of_file(path))


def load_like(path: Path, known: Sequences) -> SequenceBatch:
    """Read other sequences from the arrays `x`, `y`, and `lengths` where it is, as `load` reads its own.

    Errors: DataError that names file and array, and what was expected; one kind of sequence and label is.
    """
    arrays = _arrays(path)
    if not {"x", "y"} <= arrays.keys() <= {"x", "y", "lengths"}:
        expected = "x, y, and no others but lengths: all of it is evaluated"
        raise DataError(f"{path}: holds the arrays {', '.join(arrays) or 'of no name'}; expected {expected}")
    part = _part(path, arrays, "", "classes" if known.train.y.dim() == 1 else "numbers")
    here, there = map(_kind, (part, known.train))
    if here != there:
        raise DataError(f"{path}: a sequence is of {here}, one that was trained on of {there}; expected one kind")
    return part


def _arrays(path: Path) -> Mapping[str, Array]:
    if not path.is_file():
        raise DataError(f"{path}: there is no such file; write the arrays {', '.join(NEEDED)} to it (numpy.savez)")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        if path.suffix == ".npz":
            archive = np.load(path, allow_pickle=False)
            if not isinstance(archive, NpzFile):
                raise DataError(f"{path}: holds one array without a name; write named ones (numpy.savez)")
            with archive:
                return dict(archive)
    except (OSError, ValueError, TypeError, EOFError, BadZipFile, zlib.error, SafetensorError) as error:
        raise DataError(f"{path}: cannot be read: {error}; write it again") from error
    raise DataError(f"{path}: expected a file whose name ends in .npz or .safetensors")


def _part(path: Path, arrays: Mapping[str, Array], suffix: str, labels: Labels) -> SequenceBatch:
    x, y = arrays[f"x{suffix}"], arrays[f"y{suffix}"]
    is_x = 0 not in x.shape and (_counts(x) if x.ndim == 2 else x.ndim == 3 and _finite(x))
    _expect(is_x, path, f"x{suffix}", x, "finite reals (b, t, f), or token ids from 0 on (b, t)")
    is_y = y.ndim == 1 and _counts(y) if labels == "classes" else y.ndim in {1, 2} and _finite(y)
    _expect(is_y and len(y) == len(x), path, f"y{suffix}", y, f"a {TARGET[labels]} for each of {len(x)} sequences")
    lengths_b = arrays.get(f"lengths{suffix}", np.full(len(x), x.shape[1]))
    is_length = lengths_b.shape == (len(x),) and _counts(lengths_b) and 0 < lengths_b.min() <= lengths_b.max()
    fits = bool(is_length and lengths_b.max() <= x.shape[1])
    _expect(fits, path, f"lengths{suffix}", lengths_b, f"1 … {x.shape[1]} positions for each of {len(x)} sequences")
    x = x.astype(np.int64 if x.ndim == 2 else np.float32)
    y = y.astype(np.int64) if labels == "classes" else y.astype(np.float32).reshape(len(y), -1)
    return SequenceBatch(*map(torch.from_numpy, (x, lengths_b.astype(np.int64), y)))


def _expect(holds: bool, path: Path, name: str, array: Array, expected: str) -> None:
    if not holds:
        raise DataError(f"{path}: {name} is {array.dtype} of shape {list(array.shape)}; expected {expected}")


def _counts(array: Array) -> bool:
    return array.dtype.kind in "iu" and bool((array >= 0).all())


def _finite(array: Array) -> bool:
    return array.dtype.kind in "fiu" and bool((abs(array) <= LARGEST).all())


def _kind(part: SequenceBatch) -> str:
    inputs = "tokens" if part.x.dim() == 2 else f"{part.x.shape[2]} reals a position"
    return inputs if part.y.dim() == 1 else f"{inputs} and {part.y.shape[1]} numbers to tell"
