import dataclasses
from pathlib import Path

from onyx.api.openai.presenters import job_object
from onyx.jobs.ids import result_file_id
from onyx.jobs.models import JobProgress
from onyx.jobs.status import JobStatus
from onyx.training.contract.attempt import Failure
from onyx.training.contract.spec import DataSpec
from tests.api.openai.stored_jobs import stored_job


def test_only_a_running_job_has_an_estimated_finish() -> None:
    progress = JobProgress(update=1, seconds_left=30.5)
    job = stored_job(status=JobStatus.RUNNING, progress=progress, progress_at=1000.0)
    assert job_object(job, frozenset()).estimated_finish == 1030
    assert job_object(dataclasses.replace(job, status=JobStatus.PAUSED), frozenset()).estimated_finish is None


def test_a_failure_names_the_field_of_this_api() -> None:
    for param, shown in {
        "data": "training_file",
        "data.path": "training_file",
        "data.evaluation": "validation_file",
        "data.max_length": "onyx.max_length",
        "training.learning_rate": "onyx.learning_rate",
        "model": "model",
        None: None,
    }.items():
        error = job_object(stored_job(error=Failure(code="c", message="m", param=param)), frozenset()).error
        assert error is not None
        assert error.param == shown


def test_a_result_file_is_listed_while_it_exists() -> None:
    job = stored_job(status=JobStatus.SUCCEEDED)
    assert job_object(job, frozenset()).result_files == []
    assert job_object(job, frozenset({result_file_id(job.id)})).result_files == [result_file_id(job.id)]


def test_jobs_of_the_other_api_show_no_paths() -> None:
    job = stored_job()
    multiplier = job_object(job, frozenset()).hyperparameters.learning_rate_multiplier
    assert multiplier == 2.0  # 1e-4 over the 5e-5 that a multiplier of 1 means
    for data, shown in (
        (DataSpec(path="/srv/data/secret.jsonl"), "server"),
        (DataSpec(hub="owner/data"), "hub:owner/data"),
        (DataSpec(texts=["a"]), "inline"),
        (DataSpec(path=str(Path("/x/uploads") / f"file-{'a' * 24}.jsonl")), f"file-{'a' * 24}"),
    ):
        spec = job.spec.model_copy(update={"data": data})
        assert job_object(dataclasses.replace(job, spec=spec), frozenset()).training_file == shown
