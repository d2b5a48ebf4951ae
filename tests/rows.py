"""Rows as runs write them, with values that a test changes where it asks about them."""

from pathlib import Path
from typing import Any

from trainwright.metrics import StepMetrics, ValidationRow


def row(**changes: Any) -> StepMetrics:
    values = {"step": 3, "train_loss": 1.5, "grad_norm": 0.5, "lr": 1e-3, "tokens_per_sec": 9.0, "gpu_util_pct": None}
    return StepMetrics(**{**values, "wall_ms": 2.0, **changes})


def validation(**changes: Any) -> ValidationRow:
    numbers = {"step": 3, "epoch": 0, "n": 5, "patience": 0, "tokens_seen": 7, "value": 1.5, "wall_seconds": 0.1}
    optional = {"standard_error": 0.1, "best": 1.5, "train_loss_mean": None, "grad_norm_max": None}
    words = {"metric": "val_loss", "optimizer_state_sha256": "ab", "checkpoint": "step-00000003.a1"}
    return ValidationRow(**{**numbers, **optional, **words, "is_best": True, **changes})


def written(path: Path, *lines: bytes) -> Path:
    path.write_bytes(b"".join(lines))
    return path
