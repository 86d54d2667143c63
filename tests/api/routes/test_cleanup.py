"""Cleaning up deletes working files and configs, and nothing else."""

from starlette.testclient import TestClient

from onyx.settings import Settings
from tests.api.job_states import end_job
from tests.api.service import AT, make_job, make_key, service


def fill(at: Settings, job: str) -> None:
    for name in ("model", "checkpoints", "attempts"):
        (at.job_dir(job) / name).mkdir(parents=True)


def remaining(at: Settings, job: str) -> list[str]:
    return sorted(path.name for path in at.job_dir(job).iterdir())


def test_working_files_of_a_finished_job_are_deleted_and_its_model_stays(here: Settings) -> None:
    with service(here) as client:
        job = make_job(client)
        refused = client.delete(f"{AT}/cleanup/{job}")
        assert (refused.status_code, "cancel it first" in refused.json()["detail"]) == (400, True)
        end_job(here)
        fill(here, job)
        assert client.delete(f"{AT}/cleanup/{job}").json()["success"] is True
        assert remaining(here, job) == ["model"]
        assert client.get(f"{AT}/training/{job}").json()["status"] == "succeeded"


def test_an_unknown_id_succeeds(client: TestClient) -> None:
    assert client.delete(f"{AT}/cleanup/accumulation_1_0123456789").json()["success"] is True


def test_cleaning_up_everything_leaves_other_owners_alone(here: Settings) -> None:
    _, ann = make_key(here, "ann")
    _, bob = make_key(here, "bob")
    with service(here) as client:
        jobs = {}
        for name, who in (("ann", ann), ("bob", bob)):
            jobs[name] = make_job(client, who)
            end_job(here)
            fill(here, jobs[name])
        configs = [client.post(f"{AT}/config", json={}, headers=who).json()["training_id"] for who in (ann, bob)]
        assert client.delete(f"{AT}/cleanup", headers=ann).json()["cleaned_sessions"] == 2
        assert (remaining(here, jobs["ann"]), len(remaining(here, jobs["bob"]))) == (["model"], 3)
        assert client.get(f"{AT}/config/{configs[0]}", headers=ann).status_code == 404
        assert client.get(f"{AT}/config/{configs[1]}", headers=bob).status_code == 200
        assert client.delete(f"{AT}/cleanup", headers=ann).json()["cleaned_sessions"] == 0
