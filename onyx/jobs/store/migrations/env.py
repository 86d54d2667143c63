"""Alembic's environment. It runs on the connection and in the transaction that `onyx.jobs.store.migrate` opened."""

from alembic import context

from onyx.jobs.store.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,  # SQLite alters a table by copying it
)
context.run_migrations()
