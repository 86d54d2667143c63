"""Models and logs of a job, from files that a test has put there."""

import io
import tarfile

import pytest
from starlette.testclient import TestClient

from onyx.settings import Settings
from tests.api.lives import end
from tests.api.service import AT, make_job, service
from tests.jobs.world import FAILURE


def published(client: TestClient, at: Settings) -> str:
    job = make_job(client)
    end(at)
    folder = at.job_dir(job) / "model"
    (folder / "deep").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "deep" / "weights").write_bytes(b"\x00" * 1000)
    (at.job_dir(job) / "secret").write_text("not the model's")
    return f"{AT}/training/{job}/model"


def test_the_model_as_a_tar_and_one_file_of_it(here: Settings) -> None:
    with service(here) as client:
        model = published(client, here)
        job = model.split("/")[-2]
        answer = client.get(model)
        assert answer.headers["content-disposition"] == f'attachment; filename="{job}.tar"'
        with tarfile.open(fileobj=io.BytesIO(answer.content)) as tar:
            assert tar.getnames() == [f"{job}/config.json", f"{job}/deep/weights"]
        assert client.get(model, params={"file": "deep/weights"}).content == b"\x00" * 1000


@pytest.mark.parametrize("name", ["../secret", "deep", "deep/../config.json", "/etc/passwd", "", "x", "a\x00"])
def test_no_name_leads_out_of_the_model(here: Settings, name: str) -> None:
    with service(here) as client:
        assert client.get(published(client, here), params={"file": name}).status_code == 404


def test_what_is_not_published_is_a_400_that_says_when(client: TestClient) -> None:
    job = make_job(client)
    refused = client.get(f"{AT}/training/{job}/model")
    assert refused.status_code == 400
    assert "validating" in refused.json()["detail"]


def test_a_job_without_success_serves_no_model(here: Settings) -> None:
    """It was cancelled, or failed, between publishing and the word of its runner."""
    with service(here) as client:
        job = make_job(client)
        end(here, FAILURE)
        folder = here.job_dir(job) / "model"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        refused = client.get(f"{AT}/training/{job}/model")
        assert refused.status_code == 400
        assert "failed" in refused.json()["detail"]
        answer = client.post(
            "/v1/chat/completions", json={"model": job, "messages": [{"role": "user", "content": "hi"}]}
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


def test_logs_by_page(client: TestClient, here: Settings) -> None:
    job = make_job(client)
    assert client.get(f"{AT}/training/{job}/logs").json() == {"data": [], "has_more": False}
    log = here.job_dir(job) / "attempts" / "1" / "rank-0.log"
    log.parent.mkdir(parents=True)
    log.write_text("one\ntwo\nthree\n")
    page = client.get(f"{AT}/training/{job}/logs", params={"after": 1, "limit": 1}).json()
    assert page == {"data": [{"line": 2, "source": "attempt 1 rank-0", "text": "two"}], "has_more": True}
    assert client.get(f"{AT}/training/{job}/logs", params={"limit": 1001}).status_code == 422
