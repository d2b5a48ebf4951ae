"""What a confined child is told to do in tests."""

import os
import signal
import sys
from pathlib import Path

from trainwright.errors import DataError

TAKEN: list[bytes] = []


def add(one: float, other: float) -> float:
    print("this goes to stderr")
    return one + other


def folder() -> list[str]:
    return [str(Path.cwd()), *sys.path]


def take_memory() -> None:
    while True:
        TAKEN.append(os.urandom(1 << 20) * 64)


def spin() -> None:
    while True:
        pass


def die() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def refuse(text: str) -> None:
    raise DataError(text)


def break_down() -> None:
    raise KeyError("a bug")
