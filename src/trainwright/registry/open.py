"""The one file that names the backend: a registry by the URL of its database."""

from trainwright.registry.base import Registry
from trainwright.registry.engines import engine_of
from trainwright.registry.revisions import prepare
from trainwright.registry.sql import SqlRegistry


def open_registry(url: str) -> Registry:
    """Open the registry at `sqlite:///path` or `postgresql://…`; an empty database gets its tables.

    Errors: InputError for an URL of another kind or a missing extra; RegistryError for a database that does not
    answer, or is of another revision.
    """
    engine = engine_of(url)
    try:
        prepare(engine)
    except BaseException:
        engine.dispose()
        raise
    return SqlRegistry(engine)
