"""Every setting of a service, from `ONYX_…` in the environment or from an explicit object."""

import base64
import binascii
import json
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

MIB = 2**20


class Settings(BaseSettings):
    """What an operator can set. Every file of a service lies under `home`."""

    model_config = SettingsConfigDict(env_prefix="ONYX_", frozen=True, extra="ignore")

    home: Path = Field(default_factory=lambda: Path.home() / ".onyx")
    """Where everything is kept: store, data, jobs, models."""

    database_url: str | None = None
    """PostgreSQL as `postgresql://…`; without it a SQLite file under `home`."""

    model_root: Path | None = None
    """Base models of the operator's own: a directory whose subdirectories jobs may name."""

    data_root: Path | None = None
    """Files that jobs may name by path."""

    remote_code_models: tuple[str, ...] = ()
    """Models whose own code may run. The code of other models never runs."""

    hub_token: SecretStr | None = None
    """Given only to the process that downloads; never stored or logged."""

    cpu_devices: int = Field(default=1, ge=1)
    """Slices of the CPU to offer where there is no GPU."""

    cpu_memory: str | None = None
    """Memory that all training on the CPU may take, in bytes or like 8GB; without it what the machine allows."""

    lease_seconds: float = Field(default=30.0, gt=0)
    """How long a runner keeps its lease on a job without renewing it."""

    grace_seconds: float = Field(default=30.0, gt=0)
    """How long a rank may take to save when it is stopped, and W&B to take what is left of a finished attempt."""

    stuck_seconds: float = Field(default=1800.0, gt=0)
    """A running attempt without any progress for this long is stuck."""

    prepare_seconds: float = Field(default=3600.0, gt=0)
    """How long preparing the data of a job may take."""

    running_jobs_per_owner: int = Field(default=8, ge=1)
    """How many jobs of one owner may run at once."""

    stranded_seconds: float = Field(default=600.0, gt=0)
    """A queued job that no device here suits is planned anew after this long, if there is no other runner."""

    warm_start: bool = True
    """Fork ranks from a fork server that has torch imported, where that is safe."""

    embedded_runner: bool = True
    """Start a runner beside the service. False where the runner is a service of its own."""

    allow_anonymous: bool = False
    """Serve clients of other hosts without API keys: only behind a proxy that authenticates them."""

    rate_limit: str = "12000/minute"
    """Requests per caller."""

    planning_rate_limit: str = "120/minute"
    """Plans and batch-size calculations per caller: each may start a process."""

    streams_per_caller: int = Field(default=100, ge=1)
    """Streams of events and waiting requests that one caller may have open at once."""

    open_jobs_per_owner: int = Field(default=1000, ge=1)
    """Unfinished jobs that one owner may have."""

    configs_per_owner: int = Field(default=1000, ge=1)
    """Configs that one owner may have stored."""

    upload_bytes: int = Field(default=512 * MIB, ge=1024)
    """The largest file that may be uploaded."""

    most_rows: int = Field(default=10_000_000, ge=1)
    """Samples that a job may train on."""

    most_epochs: int = Field(default=1000, ge=1)
    """Epochs that a job may ask for."""

    most_max_length: int = Field(default=131_072, ge=2)
    """Tokens per sample that a job may ask for."""

    keep_working_days: float | None = Field(default=None, ge=0)
    """Days until a finished job's working files are deleted: checkpoints, process logs. Without it they stay."""

    keep_job_days: float | None = Field(default=None, ge=0)
    """Days until a finished job is deleted with its record, data and model. Without it jobs stay."""

    owner_disk_bytes: int | None = Field(default=None, ge=0)
    """Bytes that the jobs and files of one owner may take; then new ones are refused. Without it there is no limit."""

    free_disk_bytes: int = Field(default=512 * MIB, ge=0)
    """With fewer free bytes no job is made or started, and no checkpoint is written that can wait."""

    planner_cache_bytes: int = Field(default=256 * MIB, ge=0)
    """Bytes that the planner's stored measurements may take; the oldest are deleted first."""

    housekeeping_seconds: float = Field(default=600.0, gt=0)
    """Time between two rounds of the runner's housekeeping."""

    hot_celsius: float = Field(default=85.0, gt=0)
    """A job on a GPU that is hotter gets a warning."""

    log_format: Literal["auto", "json", "text"] = "auto"
    """Log lines as JSON or as text; auto: as text on a terminal, as JSON elsewhere."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is logged."""

    log_bytes: int = Field(default=64 * MIB, ge=0)
    """Size at which `audit.jsonl` and `run/runner.log` are rotated. 0: never; another tool rotates them."""

    log_files: int = Field(default=9, ge=1)
    """Rotated files of each that are kept, as `audit.jsonl.1` and so on; then the oldest is deleted."""

    try_idle_seconds: float = Field(default=60.0, gt=0)
    """How long a playground model stays in memory without a request."""

    try_seconds: float = Field(default=300.0, gt=0)
    """How long a chat completion may take, with its time in the queue."""

    try_queue: int = Field(default=64, ge=1)
    """Chat completions that may be running or queued at once."""

    try_queue_per_owner: int = Field(default=16, ge=1)
    """How many of these may be one owner's. Owners take turns, one completion each."""

    try_tokens: int = Field(default=1024, ge=1)
    """Tokens that a chat completion may have."""

    webhook_url: str | None = None
    """Notified of the end of every job, besides the URL that a job may name."""

    webhook_secret: SecretStr | None = None
    """Signs webhooks: `whsec_` and base64; without it none are sent. Receivers verify with the same secret."""

    webhook_allow_private: bool = False
    """Send webhooks also to http:// and to addresses that are not public: only if users may reach these anyway."""

    wandb_api_key: SecretStr | None = None
    """The W&B account for jobs that ask for tracking; given only to the tracker process, never stored or logged."""

    wandb_mode: Literal["online", "offline", "disabled"] | None = None
    """Send to W&B, keep its files with the job, or neither; by default online where there is a key, else offline."""

    @field_validator("webhook_secret")
    @classmethod
    def _signs(cls, secret: SecretStr | None) -> SecretStr | None:
        """Refuse a secret that cannot sign at the start, not at the end of the first job."""
        if secret is not None and secret.get_secret_value().startswith("whsec_"):
            try:
                base64.b64decode(secret.get_secret_value().removeprefix("whsec_"), validate=True)
            except binascii.Error:
                raise ValueError("behind whsec_ there must be base64") from None
        return secret

    @property
    def store_url(self) -> str:
        return self.database_url or f"sqlite+aiosqlite:///{self.home / 'onyx.db'}"

    @property
    def run_dir(self) -> Path:
        """The runner's lock, log and sockets."""
        return self.home / "run"

    def environment(self) -> dict[str, str]:
        """These settings as another process reads them."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return {f"ONYX_{name.upper()}": _text(value) for name, value in given.items() if value is not None}

    @classmethod
    def secret_variables(cls) -> frozenset[str]:
        """Variables that are left out of a process's environment unless it needs them."""
        secret = SecretStr | None
        return frozenset(f"ONYX_{name.upper()}" for name, info in cls.model_fields.items() if info.annotation == secret)

    def secrets(self) -> list[str]:
        """Values that must not appear in log lines or answers."""
        values = (getattr(self, name) for name in type(self).model_fields)
        known = [value.get_secret_value() for value in values if isinstance(value, SecretStr)]
        return [secret for secret in (*known, _password(self.database_url)) if secret]

    def job_dir(self, job_id: str) -> Path:
        return self.home / "jobs" / job_id


def _password(url: str | None) -> str | None:
    try:
        return urlsplit(url).password if url else None
    except ValueError:
        return None


def _text(value: Any) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return json.dumps(value) if isinstance(value, tuple | list | bool) else str(value)
