"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

LIVE = sa.text("ended_at IS NULL")


def upgrade() -> None:
    _create_jobs()
    _create_attempts()
    _create_events()
    _create_owners()
    _create_runners()


def _create_jobs() -> None:
    op.create_table(
        "job",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(255), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("queued_at", sa.Double),
        sa.Column("started_at", sa.Double),
        sa.Column("finished_at", sa.Double),
        sa.Column("running_seconds", sa.Double, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("lost_attempts", sa.Integer, nullable=False),
        sa.Column("memory_losses", sa.Integer, nullable=False),
        sa.Column("checkpoint_update", sa.BigInteger),
        sa.Column("last_event", sa.BigInteger, nullable=False),
        sa.Column("request", sa.String(32)),
        sa.Column("config_seq", sa.Integer, nullable=False),
        sa.Column("config", sa.Text),
        sa.Column("needs", sa.Text),
        sa.Column("progress_at", sa.Double),
        sa.Column("progress", sa.Text),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("prepared", sa.Text),
        sa.Column("result", sa.Text),
        sa.Column("error", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_job"),
    )
    op.create_index("ix_job_created_at_id", "job", ["created_at", "id"])
    op.create_index("ix_job_owner_created_at_id", "job", ["owner", "created_at", "id"])
    op.create_index("ix_job_status_owner_created_at_id", "job", ["status", "owner", "created_at", "id"])
    op.create_table(
        "job_samples",
        sa.Column("job_id", sa.String(64), nullable=False),
        sa.Column("samples", sa.Text, nullable=False),
        _of_job("job_samples"),
        sa.PrimaryKeyConstraint("job_id", name="pk_job_samples"),
    )


def _create_attempts() -> None:
    op.create_table(
        "attempt",
        sa.Column("job_id", sa.String(64), nullable=False),
        sa.Column("number", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("runner_id", sa.String(64), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("phase", sa.String(32), nullable=False),
        sa.Column("devices", sa.Text, nullable=False),
        sa.Column("claimed_at", sa.Double, nullable=False),
        sa.Column("lease_until", sa.Double, nullable=False),
        sa.Column("ended_at", sa.Double),
        sa.Column("outcome", sa.String(32)),
        sa.Column("ended_by", sa.String(64)),
        _of_job("attempt"),
        sa.PrimaryKeyConstraint("job_id", "number", name="pk_attempt"),
    )
    for name, column, unique in (
        ("uq_attempt_live", "job_id", True),
        ("ix_attempt_live_runner_id", "runner_id", False),
    ):
        op.create_index(name, "attempt", [column], unique=unique, postgresql_where=LIVE, sqlite_where=LIVE)
    op.create_table(
        "device_lease",
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("job_id", sa.String(64), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id", "attempt"],
            ["attempt.job_id", "attempt.number"],
            name="fk_device_lease_job_id_attempt",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("host", "name", name="pk_device_lease"),
    )
    op.create_index("ix_device_lease_job_id_attempt", "device_lease", ["job_id", "attempt"])


def _create_events() -> None:
    op.create_table(
        "event",
        sa.Column("job_id", sa.String(64), nullable=False),
        sa.Column("seq", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer),
        sa.Column("line", sa.BigInteger),
        sa.Column("time", sa.Double, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("level", sa.String(32), nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        _of_job("event"),
        sa.PrimaryKeyConstraint("job_id", "seq", name="pk_event"),
        sa.UniqueConstraint("job_id", "attempt", "line", name="uq_event_job_id_attempt_line"),
    )
    op.create_table(
        "metric",
        sa.Column("job_id", sa.String(64), nullable=False),
        sa.Column("update", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("time", sa.Double, nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        _of_job("metric"),
        sa.PrimaryKeyConstraint("job_id", "update", name="pk_metric"),
    )


def _create_owners() -> None:
    op.create_table(
        "owner",
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("served_at", sa.Double),
        sa.PrimaryKeyConstraint("name", name="pk_owner"),
    )
    op.create_table(
        "idempotency_key",
        sa.Column("owner", sa.String(255), nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("body_hash", sa.String(64), nullable=False),
        sa.Column("job_id", sa.String(64), nullable=False),
        _of_job("idempotency_key"),
        sa.PrimaryKeyConstraint("owner", "key", name="pk_idempotency_key"),
    )
    op.create_index("ix_idempotency_key_job_id", "idempotency_key", ["job_id"])
    op.create_table(
        "stored_config",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(255), nullable=False),
        sa.Column("config", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_stored_config"),
    )
    op.create_index("ix_stored_config_owner_created_at_id", "stored_config", ["owner", "created_at", "id"])


def _create_runners() -> None:
    op.create_table(
        "runner",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("pid", sa.BigInteger, nullable=False),
        sa.Column("started", sa.BigInteger, nullable=False),
        sa.Column("boot", sa.String(255), nullable=False),
        sa.Column("reached_since", sa.Double, nullable=False),
        sa.Column("reached_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_runner"),
    )
    op.create_index("ix_runner_host", "runner", ["host"])
    op.create_table(
        "marker",
        sa.Column("id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("value", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_marker"),
    )


def _of_job(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=f"fk_{table}_job_id", ondelete="CASCADE")
