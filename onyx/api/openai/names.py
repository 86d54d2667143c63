"""Names and ids in OpenAI's forms, of fine-tuned models, checkpoints and events. Each contains its job's id."""

import re
from dataclasses import dataclass

from onyx.jobs.ids import JobKind, is_id
from onyx.jobs.models import Job

MODEL_PREFIX = "ft:"
_ID_PREFIX = f"{JobKind.FINE_TUNING}-"
_MODEL = re.compile(r"(?P<model>ft:.*:(?P<key>[0-9a-z_]+))(:ckpt-step-(?P<step>[0-9]{1,12}))?", re.DOTALL)
_EVENT = re.compile(r"ftevent-(?P<key>[0-9a-z_]+)-(?P<seq>[0-9]{1,18})")
_OTHERS = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class FineTunedName:
    """The parts of a fine-tuned model's name."""

    model: str
    """The name without the checkpoint."""

    job_id: str
    step: int | None
    """The update of the checkpoint; None for the finished model."""


def model_name(job: Job) -> str:
    """`ft:<base>:<org>:<suffix>:<id>`."""
    base, suffix = base_of(job).replace(":", "."), str(job.spec.labels.get("suffix") or "")
    return f"{MODEL_PREFIX}{base}:{_plain(job.owner)}:{_plain(suffix)}:{key_of(job.id)}"


def base_of(job: Job) -> str:
    """The base model in the job's model name. A fine-tune of a fine-tune is named after the first base."""
    return str(job.spec.labels.get("base") or job.spec.model)


def checkpoint_name(job: Job, step: int) -> str:
    return f"{model_name(job)}:ckpt-step-{step}"


def read_model_name(name: str) -> FineTunedName | None:
    """The parts of a fine-tuned model's name; None for other names. The model itself may not exist."""
    match = _MODEL.fullmatch(name)
    if match is None:
        return None
    step = int(match["step"]) if match["step"] else None
    return FineTunedName(match["model"], job_id_of(match["key"]), step)


def checkpoint_id(job_id: str, step: int) -> str:
    return f"ftckpt_{key_of(job_id)}-{step}"


def event_id(job_id: str, seq: int) -> str:
    return f"ftevent-{key_of(job_id)}-{seq}"


def read_event_id(text: str, job_id: str) -> int | None:
    """The number of the event with this id; None if it is not an event of this job."""
    match = _EVENT.fullmatch(text)
    return int(match["seq"]) if match is not None and job_id_of(match["key"]) == job_id else None


def key_of(job_id: str) -> str:
    """The job's id without the `ftjob-` of jobs of this API, to be a part of a name."""
    return job_id.removeprefix(_ID_PREFIX)


def job_id_of(key: str) -> str:
    """The job's id for a key: the inverse of `key_of`."""
    return key if is_id(key) else f"{_ID_PREFIX}{key}"


def _plain(text: str) -> str:
    """The text as one part of a name: every character that would need quoting or end the part becomes a dash."""
    return _OTHERS.sub("-", text)
