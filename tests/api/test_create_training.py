"""The training answer in each state of a job."""

from onyx.api.create_training import HISTORY
from onyx.jobs.models import JobProgress
from onyx.settings import Settings
from onyx.training.contract.attempt import Event, Failure
from tests.api.job_states import end_job, start_job
from tests.api.service import AT, make_job, service
from tests.jobs.store_harness import RESULT


def test_what_is_not_known_yet_is_null(here: Settings) -> None:
    with service(here) as client:
        answer = client.get(f"{AT}/training/{make_job(client)}").json()
    unknown = ("success", "model_path", "training_time", "best_loss", "effective_batch_size", "plan", "progress")
    assert {name: answer[name] for name in unknown} == dict.fromkeys(unknown)
    assert (answer["status"], answer["error"], answer["training_history"]) == ("validating", None, [])


def test_a_running_job_shows_its_plan_and_progress(here: Settings) -> None:
    with service(here) as client:
        job = make_job(client, training_config={"learning_rate": 1e-3})
        start_job(here, progress=JobProgress(update=3, loss=0.5, samples=24))
        answer = client.get(f"{AT}/training/{job}").json()
    numbers = ("effective_batch_size", "actual_batch_size_per_gpu", "accumulation_steps", "adjusted_learning_rate")
    assert [answer[name] for name in numbers] == [8, 4, 2, 1e-3]
    assert (answer["success"], answer["progress"]["update"]) == (None, 3)
    assert answer["accumulation_stats"]["total_samples"] == 24


def test_a_finished_job_shows_its_result(here: Settings) -> None:
    with service(here) as client:
        job = make_job(client)
        end_job(here, RESULT)
        answer = client.get(f"{AT}/training/{job}").json()
    assert (answer["success"], answer["best_loss"], answer["training_time"]) == (True, 0.4, 1.5)
    assert answer["model_path"] == str(here.job_dir(job) / "model")  # the only path in any answer


def test_a_failure_is_a_sentence(here: Settings) -> None:
    with service(here) as client:
        job = make_job(client)
        end_job(here, Failure(code="bad_data", message="line 3 is not JSON: correct it"))
        answer = client.get(f"{AT}/training/{job}").json()
    assert (answer["success"], answer["model_path"]) == (False, None)
    assert answer["error"] == "line 3 is not JSON: correct it"


def test_only_the_last_updates_are_shown_and_none_in_lists(here: Settings) -> None:
    numbers = [{"update": n, "loss": 1.0, "gradient_norm": float(n), "seconds": 0.1} for n in range(HISTORY + 5)]
    events = [Event(line=n + 1, time=1.0, kind="metrics", message="", data=data) for n, data in enumerate(numbers)]
    with service(here) as client:
        job = make_job(client)
        start_job(here, *events)
        norms = client.get(f"{AT}/training/{job}").json()["accumulation_stats"]["gradient_norms"]
        (listed,) = client.get(f"{AT}/training").json()["data"]
    assert norms == [float(n) for n in range(5, HISTORY + 5)]
    assert listed["accumulation_stats"]["gradient_norms"] == []
