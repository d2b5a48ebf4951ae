"""Files of series for tests: hours of a wave with noise, as CSV, and the section `data:` that reads them."""

from pathlib import Path
from typing import Any

import numpy as np

from trainwright.data.series_options import SeriesOptions

START = np.datetime64("2024-01-01T00:00:00")
SPLIT = {"train": 200, "validation": 60, "test": 60}
ROWS = 320


def wave(rows: int = ROWS, *, seed: int = 0, level: float = 10.0, drift: float = 0.0) -> Any:
    """Give a daily wave around a level that drifts, and noise."""
    noise = np.random.default_rng(seed).normal(size=rows) * 0.1
    steps = np.arange(rows)
    return level + drift * steps + np.sin(2 * np.pi * steps / 24) + noise


def hours(rows: int = ROWS) -> list[str]:
    return [str(time) for time in START + np.arange(rows) * np.timedelta64(1, "h")]


def write(path: Path, columns: dict[str, Any]) -> Path:
    """Write columns of equal length; None and NaN are left empty."""
    lines = [",".join(columns)]
    lines += [
        ",".join("" if _is_missing(value) else str(value) for value in row)
        for row in zip(*columns.values(), strict=True)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and np.isnan(value))


def one_series(folder: Path, **changes: Any) -> Path:
    """Write one series: a time, a target `load`, and what is changed of it or added."""
    folder.mkdir(parents=True, exist_ok=True)
    return write(folder / "load.csv", {"time": hours(), "load": wave(), **changes})


def section(path: Path, **changes: Any) -> dict[str, Any]:
    """Give the section `data:` for such a file."""
    own = {"path": str(path), "time": "time", "target": "load", "context": 24, "horizon": 6, "split": SPLIT}
    return {**own, **changes}


def options(path: Path, **changes: Any) -> SeriesOptions:
    return SeriesOptions(**section(path, **changes))
