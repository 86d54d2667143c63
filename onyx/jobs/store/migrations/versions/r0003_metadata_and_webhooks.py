"""Metadata that jobs are found by, requests that are recognised when they come again, and webhooks on their way."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("job", sa.Column("body_hash", sa.String(64)))
    op.create_index("ix_job_owner_body_hash_created_at", "job", ["owner", "body_hash", "created_at"])
    op.create_table(
        "job_metadata",
        sa.Column("job_id", sa.String(64), nullable=False),
        sa.Column("pair", sa.String(64), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_job_metadata_job_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "pair", name="pk_job_metadata"),
    )
    op.create_index("ix_job_metadata_pair_job_id", "job_metadata", ["pair", "job_id"])
    op.create_table(
        "webhook",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("job_id", sa.String(64), nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("url", sa.Text),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("next_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_webhook"),
    )
    op.create_index("ix_webhook_next_at", "webhook", ["next_at"])
