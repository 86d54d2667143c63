import dataclasses

import pytest

from onyx.api.openai import names as naming
from onyx.jobs.ids import JobKind, make_job_id
from onyx.jobs.models import Job
from tests.api.openai.jobs import job_of


@pytest.mark.parametrize("kind", JobKind)
def test_a_models_name_leads_back_to_its_job(kind: JobKind) -> None:
    job = dataclasses.replace(job_of(), id=make_job_id(kind, 1_700_000_000), owner="an: owner/ü")
    name = naming.model_name(job)
    assert name == f"ft:onyx/tiny:an-owner-:my-suffix:{naming.key_of(job.id)}"
    assert naming.read_model_name(name) == naming.FineTuned(name, job.id, None)
    checkpoint = naming.checkpoint_name(job, 88)
    assert checkpoint == f"{name}:ckpt-step-88"
    assert naming.read_model_name(checkpoint) == naming.FineTuned(name, job.id, 88)


@pytest.mark.parametrize("name", ["onyx/tiny", "ft:", "ft:a", "ft:a:b::../c", "ft:a:b:c:D", "ft:x:ckpt-step-"])
def test_other_names_lead_nowhere(name: str) -> None:
    assert naming.read_model_name(name) is None


def test_events_have_numbers_of_their_own_job_only(job: Job) -> None:
    text = naming.event_id(job.id, 12)
    assert naming.read_event_id(text, job.id) == 12
    assert naming.read_event_id(text, make_job_id(JobKind.FINE_TUNING, 0)) is None
    assert naming.read_event_id("ftevent-x", job.id) is None
    assert naming.read_event_id(text + "0" * 20, job.id) is None


@pytest.fixture
def job() -> Job:
    return job_of()
