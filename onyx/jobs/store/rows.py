"""Convert rows to values. A spec is stored in two parts: without its samples, for lists, and the samples alone."""

from onyx.jobs.ids import JobKind
from onyx.jobs.models import ConfigChange, ConfigRequest, DeviceNeed, Job, JobProgress
from onyx.jobs.process_identity import ProcessIdentity
from onyx.jobs.records import AttemptRecord, RunnerRecord, StoredEvent
from onyx.jobs.status import JobStatus, Outcome, StopRequest
from onyx.jobs.store import json_text
from onyx.jobs.store.tables import AttemptRow, EventRow, JobRow, RunnerRow
from onyx.training.contract.attempt import Failure, Result
from onyx.training.contract.spec import JobSpec

_SAMPLES = ("texts", "rows", "evaluation_rows")


def split_spec(spec: JobSpec) -> tuple[str, str | None]:
    """The spec without the samples inside of it, and those samples, as JSON."""
    plain = spec.model_dump(mode="json")
    samples = {name: plain["data"][name] for name in _SAMPLES if plain["data"][name]}
    plain["data"] |= {name: [] for name in samples}
    return json_text.dump(plain), json_text.dump(samples) if samples else None


def join_spec(spec: str, samples: str | None) -> JobSpec:
    """The spec from the two parts of `split_spec`."""
    plain = json_text.load(spec)
    plain["data"] |= json_text.load(samples) if samples else {}
    return JobSpec.model_validate(plain)


def to_job(row: JobRow) -> Job:
    return Job(
        id=row.id,
        owner=row.owner,
        kind=JobKind(row.kind),
        status=JobStatus(row.status),
        spec=JobSpec.model_validate_json(row.spec),
        created_at=row.created_at,
        queued_at=row.queued_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        running_seconds=row.running_seconds,
        attempt=row.attempt,
        lost_attempts=row.lost_attempts,
        memory_losses=row.memory_losses,
        checkpoint_update=row.checkpoint_update,
        last_event=row.last_event,
        request=StopRequest(row.request) if row.request else None,
        config=to_config_request(row),
        needs=load_needs(row.needs),
        prepared=json_text.load(row.prepared) if row.prepared else None,
        progress=JobProgress.model_validate_json(row.progress) if row.progress else None,
        progress_at=row.progress_at,
        result=Result.model_validate_json(row.result) if row.result else None,
        error=Failure.model_validate_json(row.error) if row.error else None,
    )


def to_config_request(row: JobRow) -> ConfigRequest | None:
    if row.config is None:
        return None
    return ConfigRequest(seq=row.config_seq, change=ConfigChange.model_validate_json(row.config))


def load_needs(text: str | None) -> tuple[DeviceNeed, ...]:
    return tuple(DeviceNeed.model_validate(need) for need in json_text.load(text)) if text else ()


def to_event(row: EventRow) -> StoredEvent:
    return StoredEvent(
        job_id=row.job_id,
        seq=row.seq,
        attempt=row.attempt,
        line=row.line,
        time=row.time,
        kind=row.kind,
        level=row.level,
        message=row.message,
        data=json_text.load(row.data),
    )


def to_attempt(row: AttemptRow) -> AttemptRecord:
    return AttemptRecord(
        number=row.number,
        runner_id=row.runner_id,
        host=row.host,
        phase=JobStatus(row.phase),
        devices=tuple(json_text.load(row.devices)),
        claimed_at=row.claimed_at,
        lease_until=row.lease_until,
        ended_at=row.ended_at,
        outcome=Outcome(row.outcome) if row.outcome else None,
    )


def to_runner(row: RunnerRow, now: float, lease_seconds: float) -> RunnerRecord:
    return RunnerRecord(
        id=row.id,
        holder=ProcessIdentity(host=row.host, pid=row.pid, started=row.started, boot=row.boot),
        reached_since=row.reached_since,
        reached_at=row.reached_at,
        may_expire=now - row.reached_since >= lease_seconds,
    )
