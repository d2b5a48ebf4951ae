"""Connections to the registry's database: SQLite made durable, PostgreSQL by psycopg, their errors turned into ours."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from trainwright.errors import InputError, RegistryError
from trainwright.files import make_directory

KNOWN: Final = "sqlite:///path and postgresql://user@host/database"
BUSY_SECONDS: Final = 60
CONNECT_SECONDS: Final = 10
SECRET_QUERIES: Final = ("password", "sslpassword")
HIDDEN: Final = "hidden"
WRITES: Final = "trainwright_writes"


def engine_of(url: str) -> Engine:
    """Give an engine; nothing is connected yet, but the folder of a SQLite file is made.

    Errors: InputError for an URL of another kind or a missing extra; RegistryError where the folder cannot be made.
    """
    parsed = _parsed(url)
    if parsed is None:
        raise InputError(  # without the URL, which may hold a password
            f"the registry's URL cannot be read; known are {KNOWN}, where a password has %40 for '@' and a port is a "
            "number"
        )
    kind = parsed.drivername.partition("+")[0]
    if parsed.drivername in {"sqlite", "sqlite+pysqlite"} and parsed.database and parsed.database != ":memory:":
        return _sqlite(parsed, Path(parsed.database))
    if kind in {"postgresql", "postgres"}:
        return _postgresql(parsed)
    raise InputError(f"{told(parsed)!r} is no URL of a registry; known are {KNOWN}")


def _parsed(url: str) -> URL | None:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return None
    return None if "@" in (parsed.host or "") else parsed  # such a host begins with the end of a password


def told(url: URL) -> str:
    """Give an URL for a message: its password is hidden, wherever it stands in it."""
    hidden = {name: HIDDEN for name in SECRET_QUERIES if name in url.query}
    return url.update_query_dict(hidden).render_as_string(hide_password=True)


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Give a connection in a transaction that writes: all of it is done at the end, or nothing. Errors: RegistryError.

    On SQLite it has the whole database to itself from its beginning on.
    """
    with _translated(engine), engine.execution_options(**{WRITES: True}).begin() as connection:
        yield connection


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Give a connection in a transaction that only reads, and sees one state of all. Errors: RegistryError."""
    options = {"isolation_level": "REPEATABLE READ"} if engine.dialect.name == "postgresql" else {}
    with _translated(engine), engine.execution_options(**options).connect() as connection:
        yield connection


@contextmanager
def _translated(engine: Engine) -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()
        raise RegistryError(
            f"{told(engine.url)}: the registry does not answer as it should: {reason[0] if reason else error!r}"
        ) from error


def _sqlite(url: URL, file: Path) -> Engine:
    try:
        make_directory(file.parent)
    except OSError as error:
        raise RegistryError(f"{file.parent}: the registry's folder cannot be made: {error.strerror}") from error
    engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS})

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # the driver begins nothing by itself
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "begin")
    def _begun(connection: Connection) -> None:
        writes = connection.get_execution_options().get(WRITES)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _postgresql(url: URL) -> Engine:
    if find_spec("psycopg") is None:
        raise InputError("postgresql:// needs the extra postgres: pip install 'trainwright[postgres]'")
    return create_engine(
        url.set(drivername="postgresql+psycopg"),
        pool_pre_ping=True,
        connect_args={"connect_timeout": CONNECT_SECONDS},
    )
