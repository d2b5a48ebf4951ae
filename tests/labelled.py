"""Labelled sequences that are quick to learn, as files of arrays, and the configuration of a small model for them."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from tests.acceptance import harness
from trainwright.data.sequences import SequenceBatch
from trainwright.models.mamba2_sequence import Mamba2Sequence, Mamba2SequenceOptions

Arrays = dict[str, npt.NDArray[Any]]


def waves(count: int, seed: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Give sines of three speeds at irregular times, of 10 to 24 positions: value and time since the one before."""
    stream = np.random.default_rng(seed)
    gaps = stream.uniform(0.2, 1.0, (count, 24))
    kinds = stream.integers(0, 3, count)
    speeds = np.array([0.5, 1.0, 2.0])[kinds, None]
    values = np.sin(speeds * gaps.cumsum(1) + stream.uniform(0, 6.28, (count, 1)))
    return np.stack((values, gaps), -1), kinds, stream.integers(10, 25, count)


def file_of_waves(folder: Path) -> Path:
    names = ("x", "y", "lengths")
    parts = {"": waves(600, 1), "_validation": waves(200, 2)}
    arrays = {
        f"{name}{suffix}": array for suffix, part in parts.items() for name, array in zip(names, part, strict=True)
    }
    np.savez(folder / "waves.npz", **arrays)  # type: ignore[arg-type]  # its stub takes arrays by name, too
    return folder / "waves.npz"


def file_of_counts(folder: Path) -> Path:
    """Write tokens of 8 kinds, and how many of them are 0 (in thousands) and 1."""
    stream = np.random.default_rng(0)
    x = stream.integers(0, 8, (800, 12))
    y = np.stack(((x == 0).sum(1) * 1e3, (x == 1).sum(1)), -1)
    np.savez(folder / "counts.npz", x=x[:600], y=y[:600], x_validation=x[600:], y_validation=y[600:])
    return folder / "counts.npz"


def values(path: Path, **changes: Any) -> dict[str, Any]:
    small = {"layers": 1, "width": 16, "head_width": 16, "state_size": 8, "chunk": 8}
    return harness.config(
        **{
            "model": {"type": "mamba2_sequence", "task": "classification", **small},
            "data": {"path": str(path)},
            "validate": {"every": 50},
            **changes,
        }
    )


class TooSureOptions(Mamba2SequenceOptions):
    type: str  # type: ignore[assignment]  # of a user's own, module:Class


class TooSure(Mamba2Sequence):
    """It is as right as another, and where it is wrong, it is sure of it."""

    options = TooSureOptions  # type: ignore[assignment]  # it takes another `type`

    def forward(self, batch: SequenceBatch) -> Tensor:
        return super().forward(batch) * (1.0 if self.training else 1e3)
