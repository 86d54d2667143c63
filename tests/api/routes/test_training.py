"""Trainings without a runner: requests, status changes, lists and deletion."""

import pytest
from starlette.testclient import TestClient

from onyx.settings import Settings
from tests.api.job_states import end_job, start_job
from tests.api.service import AT, BODY, make_job, service

TRAIN = f"{AT}/training"


@pytest.mark.parametrize(("route", "kind"), [("with-accumulation", "accumulation_"), ("large-batch", "large_batch_")])
def test_each_route_makes_its_kind_and_answers_at_once(client: TestClient, route: str, kind: str) -> None:
    answer = client.post(f"{TRAIN}/{route}", json=BODY)
    assert answer.status_code == 202
    assert answer.json()["training_id"].startswith(kind)


def test_waiting_for_a_job_that_does_not_end_is_a_202(client: TestClient) -> None:
    answer = client.post(f"{TRAIN}/with-accumulation", params={"wait": 0.05}, json=BODY)
    assert (answer.status_code, answer.json()["status"]) == (202, "validating")
    for wait in (-1, 3601, "long"):
        assert client.post(f"{TRAIN}/with-accumulation", params={"wait": wait}, json=BODY).status_code == 422


def test_waiting_for_a_job_that_has_ended_is_a_200(here: Settings) -> None:
    with service(here) as client:
        headers = {"Idempotency-Key": "once"}
        made = client.post(f"{TRAIN}/with-accumulation", json=BODY, headers=headers).json()["training_id"]
        end_job(here)
        answer = client.post(f"{TRAIN}/with-accumulation", params={"wait": 3600}, json=BODY, headers=headers)
    assert (answer.status_code, answer.json()["training_id"]) == (200, made)


def test_an_idempotency_key_belongs_to_one_body(client: TestClient) -> None:
    headers = {"Idempotency-Key": "once"}
    first = client.post(f"{TRAIN}/with-accumulation", json=BODY, headers=headers)
    again = client.post(f"{TRAIN}/with-accumulation", json=BODY, headers=headers)
    assert first.json()["training_id"] == again.json()["training_id"]
    for route, body in (("with-accumulation", BODY | {"accumulation_steps": 3}), ("large-batch", BODY)):
        other = client.post(f"{TRAIN}/{route}", json=body, headers=headers)
        assert other.status_code == 400
        assert "another request" in other.json()["detail"]


def test_pausing_resuming_and_cancelling_before_it_starts(client: TestClient) -> None:
    job = make_job(client)
    for change, status in (("pause", "paused"), ("resume", "validating"), ("cancel", "cancelled")):
        assert client.post(f"{TRAIN}/{job}/{change}").json()["status"] == status
    assert client.post(f"{TRAIN}/{job}/cancel").status_code == 200, "cancelling twice succeeds"
    for change in ("pause", "resume"):
        refused = client.post(f"{TRAIN}/{job}/{change}")
        assert refused.status_code == 400
        assert "cancelled" in refused.json()["detail"]


def test_only_a_finished_job_can_be_deleted_and_its_files_go_with_it(here: Settings) -> None:
    with service(here) as client:
        job = make_job(client)
        assert client.delete(f"{TRAIN}/{job}").status_code == 400
        end_job(here)
        folder = here.job_dir(job) / "model"
        folder.mkdir(parents=True)
        assert client.delete(f"{TRAIN}/{job}").json()["success"] is True
        assert not folder.parent.exists()
        assert client.get(f"{TRAIN}/{job}").status_code == 404
        assert client.delete(f"{TRAIN}/{job}").status_code == 404


def test_lists_are_filtered_by_status_and_paged(here: Settings) -> None:
    with service(here) as client:
        first = make_job(client)
        start_job(here)
        second, third = make_job(client), make_job(client)
        ids = {status: _ids(client, status=status) for status in ("running", "validating", "failed")}
        assert ids == {"running": [first], "validating": [third, second], "failed": []}
        assert _ids(client, status=["running", "validating"]) == [third, second, first]
        page = client.get(TRAIN, params={"limit": 2}).json()
        assert page["has_more"] is True
        assert _ids(client, after=page["data"][-1]["training_id"]) == [first]
        assert client.get(TRAIN, params={"status": "asleep"}).status_code == 422


def _ids(client: TestClient, **query: str | list[str]) -> list[str]:
    return [job["training_id"] for job in client.get(TRAIN, params=query).json()["data"]]
