import dataclasses
from pathlib import Path

from onyx.api.openai.presenters import job_answer
from onyx.jobs.ids import result_file_id
from onyx.jobs.models import JobProgress
from onyx.jobs.status import JobStatus
from onyx.training.contract.attempt import Failure
from onyx.training.contract.spec import DataSpec
from tests.api.openai.jobs import job_of


def test_a_running_job_says_when_it_will_be_done() -> None:
    progress = JobProgress(update=1, seconds_left=30.5)
    job = job_of(status=JobStatus.RUNNING, progress=progress, progress_at=1000.0)
    assert job_answer(job, frozenset()).estimated_finish == 1030
    assert job_answer(dataclasses.replace(job, status=JobStatus.PAUSED), frozenset()).estimated_finish is None


def test_a_failure_names_the_field_of_this_api() -> None:
    for param, told in {
        "data": "training_file",
        "data.path": "training_file",
        "data.evaluation": "validation_file",
        "data.max_length": "onyx.max_length",
        "training.learning_rate": "onyx.learning_rate",
        "model": "model",
        None: None,
    }.items():
        error = job_answer(job_of(error=Failure(code="c", message="m", param=param)), frozenset()).error
        assert error is not None
        assert error.param == told


def test_a_result_file_is_named_while_it_is_there() -> None:
    job = job_of(status=JobStatus.SUCCEEDED)
    assert job_answer(job, frozenset()).result_files == []
    assert job_answer(job, frozenset({result_file_id(job.id)})).result_files == [result_file_id(job.id)]


def test_jobs_of_other_apis_are_told_without_paths() -> None:
    job = job_of()
    multiplier = job_answer(job, frozenset()).hyperparameters.learning_rate_multiplier
    assert multiplier == 2.0  # 1e-4 over the 5e-5 that a multiplier of 1 means
    for data, told in (
        (DataSpec(path="/srv/data/secret.jsonl"), "server"),
        (DataSpec(hub="owner/data"), "hub:owner/data"),
        (DataSpec(texts=["a"]), "inline"),
        (DataSpec(path=str(Path("/x/uploads") / f"file-{'a' * 24}.jsonl")), f"file-{'a' * 24}"),
    ):
        spec = job.spec.model_copy(update={"data": data})
        assert job_answer(dataclasses.replace(job, spec=spec), frozenset()).training_file == told
