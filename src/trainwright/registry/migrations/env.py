"""Runs the migrations on the connection that `revisions` gives, inside its transaction."""

from alembic import context

from trainwright.registry.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, transactional_ddl=True)
context.run_migrations()
