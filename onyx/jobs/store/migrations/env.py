"""How Alembic runs here: on a connection and in a transaction that `onyx.jobs.store.migrate` opened."""

from alembic import context

from onyx.jobs.store.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,  # SQLite alters a table by copying it
)
context.run_migrations()
