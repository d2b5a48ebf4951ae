"""Trainwright trains models under contract: every step on record, every claim recomputed from the run's files."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainwright.app import resume as resume
    from trainwright.app import train as train
    from trainwright.config import RunConfig as RunConfig
    from trainwright.errors import TrainwrightError as TrainwrightError
    from trainwright.runs import RunResult as RunResult
    from trainwright.torch_trainable import TorchTrainable as TorchTrainable
    from trainwright.trainable import Metric as Metric
    from trainwright.trainable import Setup as Setup
    from trainwright.trainable import Source as Source
    from trainwright.trainable import Trainable as Trainable
    from trainwright.trainable import Validation as Validation

__version__ = "0.1.0"

_PLACES = {
    "train": "trainwright.app",
    "resume": "trainwright.app",
    "RunConfig": "trainwright.config",
    "RunResult": "trainwright.runs",
    "TorchTrainable": "trainwright.torch_trainable",
    "Metric": "trainwright.trainable",
    "Setup": "trainwright.trainable",
    "Source": "trainwright.trainable",
    "Trainable": "trainwright.trainable",
    "Validation": "trainwright.trainable",
    "TrainwrightError": "trainwright.errors",
}
__all__ = ["__version__", *_PLACES]  # noqa: PLE0604  the table is the list


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for, so that the command line need not import torch."""
    if name not in _PLACES:
        raise AttributeError(f"module 'trainwright' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return __all__
