"""The command `trainwright …` in a process of its own, which is waited for, or killed."""

import os
import signal
import subprocess
import sys
from tempfile import TemporaryFile
from typing import Protocol, Self, final

from trainwright.errors import InputError

FINISHED = frozenset({0, 3})


class Process(Protocol):
    """A process that runs one command; left behind, it is killed."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def runs(self) -> bool: ...
    def kill(self) -> bool:
        """End it at once; tell whether this is what ended it."""

    def finish(self) -> None:
        """Wait for its end. Errors: InputError with the end of what it told, unless it is that of a finished run."""


@final
class Child:
    """A process `trainwright …` that finds the modules which this one finds; left behind, it is killed."""

    def __init__(self, *words: str) -> None:
        self._words = words
        self._told = TemporaryFile()  # noqa: SIM115  closed as the child is left
        self._process = subprocess.Popen(  # noqa: S603  this program, and words of its own
            [sys.executable, "-m", "trainwright", *words],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(place for place in sys.path if place)},
            stdout=subprocess.DEVNULL,
            stderr=self._told,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._told.close()

    def runs(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> bool:
        self._process.kill()
        return self._process.wait() == -signal.SIGKILL

    def finish(self) -> None:
        code = self._process.wait()
        if code not in FINISHED:
            self._told.seek(0)
            tail = self._told.read().decode(errors="replace").strip().splitlines()[-5:]
            raise InputError(f"trainwright {' '.join(self._words)}: exit code {code}: {' / '.join(tail)}")
