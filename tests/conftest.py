"""What every test may use. The package under test is the installed one, else the one in src."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
INSTALLED = find_spec("trainwright")
PLACES = [str(ROOT), *([] if INSTALLED else [str(ROOT / "src")])]

sys.path[:0] = [place for place in PLACES if place not in sys.path]


@pytest.fixture(scope="session")
def child_environment() -> dict[str, str]:
    """Give the environment of a child process that finds the package and `tests.toys` wherever it runs."""
    before = [str(Path(place).resolve()) for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*PLACES, *before])}
