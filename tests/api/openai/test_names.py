import dataclasses

import pytest

from onyx.api.openai import names
from onyx.jobs.ids import JobKind, make_job_id
from onyx.jobs.models import Job
from tests.api.openai.stored_jobs import stored_job


@pytest.mark.parametrize("kind", JobKind)
def test_a_model_name_contains_its_jobs_id(kind: JobKind) -> None:
    job = dataclasses.replace(stored_job(), id=make_job_id(kind, 1_700_000_000), owner="an: owner/ü")
    name = names.model_name(job)
    assert name == f"ft:onyx/tiny:an-owner-:my-suffix:{names.key_of(job.id)}"
    assert names.read_model_name(name) == names.FineTunedName(name, job.id, None)
    checkpoint = names.checkpoint_name(job, 88)
    assert checkpoint == f"{name}:ckpt-step-88"
    assert names.read_model_name(checkpoint) == names.FineTunedName(name, job.id, 88)


@pytest.mark.parametrize("name", ["onyx/tiny", "ft:", "ft:a", "ft:a:b::../c", "ft:a:b:c:D", "ft:x:ckpt-step-"])
def test_other_names_are_not_parsed(name: str) -> None:
    assert names.read_model_name(name) is None


def test_an_event_id_belongs_to_one_job(job: Job) -> None:
    text = names.event_id(job.id, 12)
    assert names.read_event_id(text, job.id) == 12
    assert names.read_event_id(text, make_job_id(JobKind.FINE_TUNING, 0)) is None
    assert names.read_event_id("ftevent-x", job.id) is None
    assert names.read_event_id(text + "0" * 20, job.id) is None


@pytest.fixture
def job() -> Job:
    return stored_job()
