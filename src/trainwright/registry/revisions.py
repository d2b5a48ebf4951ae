"""The revision of a registry's database: which one it is of, and how it is brought to another.

A new database is made when it is first opened; an older one is brought up only when the user asks for it, and a newer
one is left alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect, text

from trainwright.errors import InputError, RegistryError
from trainwright.registry.engines import engine_of, reading, told, writing

FOLDER: Final = Path(__file__).parent / "migrations"
HEAD: Final = "head"
BASE: Final = "base"
OWN_TABLE: Final = "alembic_version"  # stays when all others are removed
LOCK: Final = 7_214_990_518  # of PostgreSQL, held while one process migrates


@dataclass(frozen=True, slots=True)
class Migrated:
    """What a migration did: the revision before and after; None is a database without tables of ours."""

    before: str | None
    after: str | None


def known() -> Sequence[str]:
    """Give the revisions that this version knows, oldest first."""
    return [script.revision for script in ScriptDirectory(str(FOLDER)).walk_revisions()][::-1]


def migrate(url: str, to: str = HEAD) -> Migrated:
    """Bring the database at `url` to a revision, up or down, in one transaction; `base` removes all there is.

    Errors: InputError for an unknown revision; RegistryError where the database is of one, or does not answer.
    """
    engine = engine_of(url)
    try:
        return bring(engine, to)
    finally:
        engine.dispose()


def bring(engine: Engine, to: str = HEAD) -> Migrated:
    """As `migrate`, on an engine."""
    names = known()
    target = {HEAD: names[-1], BASE: None}.get(to, to)
    if target is not None and target not in names:
        raise InputError(f"revision {to!r} is not one of: {', '.join((*names, HEAD, BASE))}")
    with writing(engine) as connection:
        _hold(connection)
        before = _known_revision(connection, names)
        if before is None:
            _refuse_foreign(connection)
        if before != target:
            position = [None, *names].index
            move = command.upgrade if position(target) > position(before) else command.downgrade
            move(_config(connection), target or BASE)
        return Migrated(before, target)


def prepare(engine: Engine) -> None:
    """Make the tables in an empty database. Errors: RegistryError for one of another revision, with what to do."""
    names = known()
    with reading(engine) as connection:
        revision = _known_revision(connection, names)
    if revision is None:
        bring(engine)
    elif revision != names[-1]:
        raise RegistryError(
            f"{told(engine.url)}: is of revision {revision}, this version needs {names[-1]}; save a copy of the "
            "database, then: trainwright models migrate"
        )


def revision_of(engine: Engine) -> str | None:
    """Give the revision that the database says it is of, known or not; None where it says none."""
    with reading(engine) as connection:
        return MigrationContext.configure(connection).get_current_revision()


def _known_revision(connection: Connection, names: Sequence[str]) -> str | None:
    revision = MigrationContext.configure(connection).get_current_revision()
    if revision is not None and revision not in names:
        raise RegistryError(
            f"{told(connection.engine.url)}: is of revision {revision}, which this version does not know (it knows "
            f"{', '.join(names)}): a newer version made it; use that version, or name another database"
        )
    return revision


def _refuse_foreign(connection: Connection) -> None:
    """Errors: RegistryError for a database without tables of ours that holds others."""
    if set(inspect(connection).get_table_names()) - {OWN_TABLE}:
        raise RegistryError(
            f"{told(connection.engine.url)}: holds tables of something else; name a database of its own"
        )


def _hold(connection: Connection) -> None:
    """Wait for another process that migrates; SQLite's transaction has the database to itself anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config
