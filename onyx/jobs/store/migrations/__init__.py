"""The tables' history, for Alembic."""
