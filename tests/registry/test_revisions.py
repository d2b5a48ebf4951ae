"""Migrations up and down, on both databases, with rows in them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Engine, inspect, select, text

from tests.servers.postgres import new_postgres_url, postgres_server
from tests.suites.registry import CHANGES_BY_HAND, WHO, added, facts, refused, sqlite_url
from trainwright.errors import InputError, RegistryError
from trainwright.registry import revisions
from trainwright.registry.engines import engine_of
from trainwright.registry.open import open_registry
from trainwright.registry.revisions import Migrated, migrate
from trainwright.registry.tables import metadata

__all__ = ["new_postgres_url", "postgres_server"]

OLDEST, NEWEST = revisions.known()[0], revisions.known()[-1]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return sqlite_url(tmp_path) if request.param == "sqlite" else request.getfixturevalue("new_postgres_url")()


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = engine_of(url)
    yield engine
    engine.dispose()


def rows(engine: Engine) -> dict[str, list[tuple[object, ...]]]:
    with engine.connect() as connection:
        return {
            table.name: [tuple(row) for row in connection.execute(select(table))] for table in metadata.sorted_tables
        }


def filled(url: str) -> None:
    """Fill every table of a new registry."""
    registry = open_registry(url)
    number = added(registry, "m", "1.0.0")
    registry.alias("m", "champion", number, who=WHO)
    registry.tag("m", number, "key", "value", who=WHO)
    registry.close()


def test_a_new_database_gets_the_tables_that_the_code_knows(url: str, engine: Engine) -> None:
    assert migrate(url) == Migrated(None, NEWEST)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_every_row_outlives_a_way_down_and_up(url: str, engine: Engine) -> None:
    filled(url)
    before = rows(engine)
    assert all(before.values())
    assert migrate(url, OLDEST) == Migrated(NEWEST, OLDEST)
    assert rows(engine) == before
    assert not refused(url, "UPDATE audit SET who = who")
    assert migrate(url) == Migrated(OLDEST, NEWEST)
    assert rows(engine) == before
    assert all(refused(url, statement) for statement in CHANGES_BY_HAND)
    registry = open_registry(url)
    assert registry.named("m", "champion").facts == facts("run-of-1.0.0")
    registry.register("m", facts("next"), "minor", who=WHO)
    registry.close()


def test_down_to_the_base_leaves_nothing_and_up_again_works(url: str, engine: Engine) -> None:
    filled(url)
    assert migrate(url, "base") == Migrated(NEWEST, None)
    with engine.connect() as connection:
        assert inspect(connection).get_table_names() == ["alembic_version"]
    open_registry(url).close()
    assert migrate(url, "base") == Migrated(NEWEST, None)
    assert migrate(url) == Migrated(None, NEWEST)
    registry = open_registry(url)
    assert list(registry.ls(deleted=True)) == []
    registry.close()


def test_a_migration_to_where_it_is_changes_nothing(url: str, engine: Engine) -> None:
    filled(url)
    before = rows(engine)
    assert migrate(url) == Migrated(NEWEST, NEWEST)
    assert rows(engine) == before


def test_an_older_database_is_refused_with_the_command_that_brings_it_up(url: str) -> None:
    migrate(url, OLDEST)
    with pytest.raises(RegistryError, match=rf"of revision {OLDEST}, this version needs {NEWEST}; .*models migrate"):
        open_registry(url)


def test_a_newer_database_is_left_alone(url: str, engine: Engine) -> None:
    filled(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    before = rows(engine)
    for attempt in (open_registry, migrate):
        with pytest.raises(RegistryError, match="of revision 9999, which this version does not know"):
            attempt(url)
    assert rows(engine) == before
    assert revisions.revision_of(engine) == "9999"


def test_a_database_of_something_else_is_left_alone(url: str, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id integer)"))
    for attempt in (open_registry, migrate):
        with pytest.raises(RegistryError, match="holds tables of something else"):
            attempt(url)
    with engine.connect() as connection:
        assert inspect(connection).get_table_names() == ["orders"]


def test_a_migration_that_fails_leaves_the_revision_before(url: str, engine: Engine) -> None:
    migrate(url, OLDEST)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE files"))  # a later statement of the next revision needs it
    with pytest.raises(RegistryError, match="files"):
        migrate(url)
    assert revisions.revision_of(engine) == OLDEST
    assert not refused(url, "DELETE FROM audit")


def test_an_unknown_revision_is_refused_with_those_there_are(url: str) -> None:
    with pytest.raises(InputError, match=rf"revision 'x' is not one of: {OLDEST}, {NEWEST}, head, base"):
        migrate(url, "x")
