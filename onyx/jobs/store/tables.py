"""The tables. Times are seconds since the epoch by the database's clock; JSON is text that only Onyx reads."""

from typing import Annotated

from sqlalchemy import (
    BigInteger,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

Id = Annotated[str, mapped_column(String(64))]
JobKey = Annotated[str, mapped_column(String(64), ForeignKey("job.id", ondelete="CASCADE"), primary_key=True)]
Name = Annotated[str, mapped_column(String(255))]
Word = Annotated[str, mapped_column(String(32))]
Json = Annotated[str, mapped_column(Text)]
Prose = Annotated[str, mapped_column(Text)]
Seconds = Annotated[float, mapped_column(Double)]

_LIVE = text("ended_at IS NULL")


class Base(DeclarativeBase):
    """Gives constraints the same names on every database, so that migrations can refer to them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class JobRow(Base):
    """A job: its spec, its status and its results."""

    __tablename__ = "job"
    __table_args__ = (
        Index(None, "owner", "created_at", "id"),  # an owner's list
        Index(None, "status", "owner", "created_at", "id"),  # the queue, and an owner's list by status
        Index(None, "created_at", "id"),  # an operator's list
        Index(None, "owner", "body_hash", "created_at"),  # a request that is repeated
    )

    id: Mapped[Id] = mapped_column(primary_key=True)
    owner: Mapped[Name]
    kind: Mapped[Word]
    status: Mapped[Word]
    created_at: Mapped[Seconds]
    queued_at: Mapped[Seconds | None]
    started_at: Mapped[Seconds | None]
    finished_at: Mapped[Seconds | None]
    running_seconds: Mapped[Seconds] = mapped_column(default=0.0)
    version: Mapped[int] = mapped_column(Integer)
    attempt: Mapped[int] = mapped_column(Integer, default=0)
    lost_attempts: Mapped[int] = mapped_column(Integer, default=0)
    memory_losses: Mapped[int] = mapped_column(Integer, default=0)
    checkpoint_update: Mapped[int | None] = mapped_column(BigInteger)
    last_event: Mapped[int] = mapped_column(BigInteger, default=0)
    request: Mapped[Word | None]
    config_seq: Mapped[int] = mapped_column(Integer, default=0)
    config: Mapped[Json | None]
    needs: Mapped[Json | None]
    progress_at: Mapped[Seconds | None]
    progress: Mapped[Json | None]
    spec: Mapped[Json]
    prepared: Mapped[Json | None]
    result: Mapped[Json | None]
    error: Mapped[Json | None]
    body_hash: Mapped[Id | None]
    """Hash of the request that created it."""

    # Every UPDATE names the version that it read and must match one row: no write is based on a stale row.
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012 - SQLAlchemy declares it so


class SamplesRow(Base):
    """Samples that came inside of a request. In a table of their own, so that a list of jobs does not read them."""

    __tablename__ = "job_samples"

    job_id: Mapped[JobKey]
    samples: Mapped[Json]


class MetadataRow(Base):
    """The hash of a pair of a job's metadata, to search by. The text itself is in the job's spec."""

    __tablename__ = "job_metadata"
    __table_args__ = (Index(None, "pair", "job_id"),)

    job_id: Mapped[JobKey]
    pair: Mapped[Id] = mapped_column(primary_key=True)


class AttemptRow(Base):
    """One lease of a job by a runner."""

    __tablename__ = "attempt"
    __table_args__ = (
        Index("uq_attempt_live", "job_id", unique=True, postgresql_where=_LIVE, sqlite_where=_LIVE),
        Index("ix_attempt_live_runner_id", "runner_id", postgresql_where=_LIVE, sqlite_where=_LIVE),
    )

    job_id: Mapped[JobKey]
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    runner_id: Mapped[Id]
    host: Mapped[Name]
    phase: Mapped[Word]
    devices: Mapped[Json]
    claimed_at: Mapped[Seconds]
    lease_until: Mapped[Seconds]
    ended_at: Mapped[Seconds | None]
    outcome: Mapped[Word | None]
    ended_by: Mapped[Id | None]
    """A runner's id, or empty when the owner ended it."""


class DeviceRow(Base):
    """A device in use. Its primary key makes it impossible to lend it twice."""

    __tablename__ = "device_lease"
    __table_args__ = (
        ForeignKeyConstraint(["job_id", "attempt"], ["attempt.job_id", "attempt.number"], ondelete="CASCADE"),
        Index(None, "job_id", "attempt"),
    )

    host: Mapped[Name] = mapped_column(primary_key=True)
    name: Mapped[Name] = mapped_column(primary_key=True)
    job_id: Mapped[Id]
    attempt: Mapped[int] = mapped_column(Integer)


class EventRow(Base):
    """Something that happened to a job."""

    __tablename__ = "event"
    __table_args__ = (UniqueConstraint("job_id", "attempt", "line"),)

    job_id: Mapped[JobKey]
    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    attempt: Mapped[int | None] = mapped_column(Integer)
    line: Mapped[int | None] = mapped_column(BigInteger)
    time: Mapped[Seconds]
    kind: Mapped[Word]
    level: Mapped[Word]
    message: Mapped[Prose]
    data: Mapped[Json]


class MetricRow(Base):
    """The numbers of one update."""

    __tablename__ = "metric"

    job_id: Mapped[JobKey]
    update: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    attempt: Mapped[int] = mapped_column(Integer)
    time: Mapped[Seconds]
    data: Mapped[Json]


class OwnerRow(Base):
    """An owner, and when it last got devices."""

    __tablename__ = "owner"

    name: Mapped[Name] = mapped_column(primary_key=True)
    served_at: Mapped[Seconds | None]


class IdempotencyRow(Base):
    """Which job a request with this idempotency key created."""

    __tablename__ = "idempotency_key"

    owner: Mapped[Name] = mapped_column(primary_key=True)
    key: Mapped[Name] = mapped_column(primary_key=True)
    body_hash: Mapped[Id]
    job_id: Mapped[Id] = mapped_column(ForeignKey("job.id", ondelete="CASCADE"), index=True)


class ConfigRow(Base):
    """A config kept for later jobs."""

    __tablename__ = "stored_config"
    __table_args__ = (Index(None, "owner", "created_at", "id"),)

    id: Mapped[Id] = mapped_column(primary_key=True)
    owner: Mapped[Name]
    config: Mapped[Json]
    created_at: Mapped[Seconds]
    updated_at: Mapped[Seconds]


class KeyRow(Base):
    """An API key. Of its secret only the hash is stored."""

    __tablename__ = "api_key"

    id: Mapped[Id] = mapped_column(primary_key=True)
    name: Mapped[Name]
    owner: Mapped[Name]
    scope: Mapped[Word]
    secret_hash: Mapped[Id]
    created_at: Mapped[Seconds]
    revoked_at: Mapped[Seconds | None]


class FileRow(Base):
    """A file that an owner uploaded, or that a job wrote. Its content is under ONYX_HOME."""

    __tablename__ = "file"
    __table_args__ = (Index(None, "owner", "created_at", "id"), Index(None, "expires_at"))

    id: Mapped[Id] = mapped_column(primary_key=True)
    owner: Mapped[Name]
    purpose: Mapped[Word]
    filename: Mapped[Name]
    suffix: Mapped[Word]
    bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[Seconds]
    expires_at: Mapped[Seconds | None]


class WebhookRow(Base):
    """A webhook to deliver about an ended job. Without a foreign key, since it outlives a job that is deleted."""

    __tablename__ = "webhook"
    __table_args__ = (Index(None, "next_at"),)

    id: Mapped[Id] = mapped_column(primary_key=True)
    job_id: Mapped[Id]
    status: Mapped[Word]
    url: Mapped[Prose | None]
    """The receiver that the job names; None for the operator's."""

    created_at: Mapped[Seconds]
    tries: Mapped[int] = mapped_column(Integer)
    next_at: Mapped[Seconds]


class RunnerRow(Base):
    """A runner and how well it reaches the store."""

    __tablename__ = "runner"
    __table_args__ = (Index(None, "host"),)

    id: Mapped[Id] = mapped_column(primary_key=True)
    host: Mapped[Name]
    pid: Mapped[int] = mapped_column(BigInteger)
    started: Mapped[int] = mapped_column(BigInteger)
    boot: Mapped[Name]
    reached_since: Mapped[Seconds]
    reached_at: Mapped[Seconds]


class MarkerRow(Base):
    """The random id that ONYX_HOME's marker file must hold: one row."""

    __tablename__ = "marker"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    value: Mapped[Id]
