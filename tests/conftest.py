"""What every test may use. The package under test is the installed one, else the one in src."""

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.servers.openbao import OpenBao
    from tests.servers.seaweed import Seaweed

ROOT = Path(__file__).resolve().parent.parent
INSTALLED = find_spec("trainwright")
PLACES = [str(ROOT), *([] if INSTALLED else [str(ROOT / "src")])]

sys.path[:0] = [place for place in PLACES if place not in sys.path]


@pytest.fixture(scope="session")
def child_environment() -> dict[str, str]:
    """Give the environment of a child process that finds the package and `tests.toys` wherever it runs."""
    before = [str(Path(place).resolve()) for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*PLACES, *before])}


@pytest.fixture(scope="module", autouse=True)
def no_secret_of_another_module() -> Iterator[None]:
    """Let no value that the tests of a module make secret be taken out of the texts of another's."""
    from trainwright import redaction

    before = dict(redaction._known)
    yield
    redaction._known.clear()
    redaction._known.update(before)


@pytest.fixture(scope="session")
def openbao(tmp_path_factory: pytest.TempPathFactory) -> Iterator["OpenBao"]:
    """Give a real OpenBao, one for all tests of a process."""
    from tests.servers.openbao import running

    with running(tmp_path_factory.mktemp("openbao")) as server:
        yield server


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Seaweed"]:
    """Give a real S3 server, one for all tests of a process that leave it running."""
    from tests.servers.seaweed import running

    with running(tmp_path_factory.mktemp("seaweed")) as server:
        yield server
