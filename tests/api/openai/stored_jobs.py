"""Jobs as the store returns them."""

from typing import Any

from onyx.jobs.ids import JobKind, make_job_id
from onyx.jobs.models import Job
from onyx.jobs.spec_builder import job_spec
from onyx.jobs.status import JobStatus


def stored_job(**more: Any) -> Job:
    spec = job_spec(
        model="onyx/tiny",
        data={"texts": []},
        training={"epochs": 2, "learning_rate": 1e-4},
        window=8,
        labels={"suffix": "my suffix", "metadata": {"a": "b"}},
    )
    given: dict[str, Any] = {
        "id": make_job_id(JobKind.FINE_TUNING, 0),
        "owner": "ann",
        "kind": JobKind.FINE_TUNING,
        "status": JobStatus.QUEUED,
        "spec": spec,
        "created_at": 100.9,
        "queued_at": None,
        "started_at": None,
        "finished_at": None,
        "running_seconds": 0.0,
        "attempt": 0,
        "lost_attempts": 0,
        "memory_losses": 0,
        "checkpoint_update": None,
        "last_event": 1,
        "request": None,
        "config": None,
        "needs": (),
        "prepared": None,
        "progress": None,
        "progress_at": None,
        "result": None,
        "error": None,
    }
    return Job(**given | more)
