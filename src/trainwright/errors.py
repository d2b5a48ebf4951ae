"""Errors, in one tree. Each leaf's docstring is the situation; `exit_code` is what the command returns.

TrainwrightError              1  internal error
├── InputError                2  wrong input: a configuration, a contract, an argument
├── DeviceUnavailableError    5  the device that was asked for is not there
├── DataError                 6  data missing, damaged or exhausted
│   └── DataExhaustedError    6  `exhaustion: halt` and every window was seen
├── StoreError                7  a checkpoint or a store failed
│   ├── StoreRefusedError     7  a store answers that it will not: a wrong key, no right, no such bucket
│   ├── StoreUnavailableError 7  a store does not answer as it should, after retries
│   ├── RunTakenUpError       7  a run in a store was taken up elsewhere
│   └── DamagedCheckpointError 7 a file of a checkpoint is not what its manifest says
├── RegistryError             7  the registry's database failed
└── MemoryExhaustedError      8  out of memory

What is expected of a run (a gate that fails, an abort by a guard) is a value, `outcome.Outcome`, not an error.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar


class TrainwrightError(Exception):
    """An error of Trainwright: its text says what, where, what was expected and what to do."""

    exit_code: ClassVar[int] = 1
    config_key: str | None = None  # the key of run.yaml that is to be changed, where it is known


class InputError(TrainwrightError):
    """What the user wrote cannot be used as it stands."""

    exit_code = 2


class DeviceUnavailableError(TrainwrightError):
    """The device that was asked for is not there. An explicit request never falls back to another device."""

    exit_code = 5


class DataError(TrainwrightError):
    """Data are missing, damaged or too few."""

    exit_code = 6


class DataExhaustedError(DataError):
    """Every window was seen once and `exhaustion: halt` forbids another pass."""


class StoreError(TrainwrightError):
    """A checkpoint could not be written or read."""

    exit_code = 7


class StoreRefusedError(StoreError):
    """A store answers that it will not: a wrong key, no right, no such bucket. To try again changes nothing."""


class StoreUnavailableError(StoreError):
    """A store does not answer, or with a fault of its own, after retries. Later it may work."""


class RunTakenUpError(StoreError):
    """A run in a store was taken up by another run directory; this one's attempts do not go there any more."""


class DamagedCheckpointError(StoreError):
    """A file of a checkpoint is missing or differs from its manifest."""


class RegistryError(TrainwrightError):
    """The registry's database does not answer as it should, or is of another revision than this version knows."""

    exit_code = 7


class MemoryExhaustedError(TrainwrightError):
    """The device or the host has no memory left."""

    exit_code = 8


@contextmanager
def about(key: str) -> Iterator[None]:
    """Note on an error from inside the key of run.yaml that it is about, for where the file is known."""
    try:
        yield
    except TrainwrightError as error:
        error.config_key = error.config_key or key
        raise
