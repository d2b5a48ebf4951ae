"""The command `trainwright …` in a process of its own, which is waited for, or killed."""

import os
import signal
import subprocess
import sys
from tempfile import TemporaryFile
from typing import Final, Protocol, Self, final

from trainwright.errors import InputError
from trainwright.outcome import Outcome

FINISHED: Final = (Outcome.DONE, Outcome.GATE_FAILED)


def command(*words: str, module: str = "trainwright") -> list[str]:
    """Give the words that start a module of this interpreter, with no folder beside what `environment` names."""
    return [sys.executable, "-P", "-m", module, *words]


def environment(**more: str) -> dict[str, str]:
    """Give a child what this process imports from, wherever the child stands, and the variables `more`."""
    places = [os.path.abspath(place) for place in sys.path if place]  # noqa: PTH100  entries may be zip files
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places), **more}


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
            command(*words),
            env=environment(),
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
        if code not in {outcome.exit_code for outcome in FINISHED}:
            self._told.seek(0)
            tail = self._told.read().decode(errors="replace").strip().splitlines()[-5:]
            raise InputError(f"trainwright {' '.join(self._words)}: exit code {code}: {' / '.join(tail)}")
