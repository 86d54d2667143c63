"""Models and logs of a job, from files that the tests write."""

import io
import tarfile
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from onyx.api.http.scrubbing import MOST_CHARACTERS
from onyx.api.routes import results
from onyx.settings import Settings
from tests.api.job_states import end_job
from tests.api.service import AT, make_job, service, settings
from tests.jobs.store_harness import FAILURE


def published(client: TestClient, at: Settings) -> str:
    job = make_job(client)
    end_job(at)
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


def test_an_unpublished_model_is_a_400_with_the_status(client: TestClient) -> None:
    job = make_job(client)
    refused = client.get(f"{AT}/training/{job}/model")
    assert refused.status_code == 400
    assert "validating" in refused.json()["detail"]


def test_a_failed_job_serves_no_model(here: Settings) -> None:
    """A job can fail or be cancelled after its rank published the model and before the runner reported success."""
    with service(here) as client:
        job = make_job(client)
        end_job(here, FAILURE)
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


JOB = "accumulation_1_0123456789"


def write(at: Settings, attempt: int, name: str, text: str) -> None:
    path = at.job_dir(JOB) / "attempts" / str(attempt) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def texts(at: Settings, after: int = 0, limit: int = 100) -> list[str]:
    return [line.text for line in results.page(at, JOB, after, limit).data]


def test_lines_come_in_the_order_of_attempts(here: Settings) -> None:
    write(here, 10, "rank-0.log", "last\n")
    write(here, 2, "rank-1.log", "third\n")
    write(here, 2, "rank-0.log", "first\nsecond\n")
    assert texts(here) == ["first", "second", "third", "last"]
    page = results.page(here, JOB, after=1, limit=2)
    assert [(line.line, line.text) for line in page.data] == [(2, "second"), (3, "third")]
    assert page.has_more
    assert not results.page(here, JOB, after=3, limit=2).has_more
    assert results.page(here, JOB, after=99, limit=2).data == []
    assert results.page(here, "accumulation_1_nothere000", 0, 2).data == []


def test_logs_show_no_tracebacks_paths_or_tokens(tmp_path: Path) -> None:
    at = settings(tmp_path / "home", hub_token="hf_topsecret")  # noqa: S106
    trace = 'Traceback (most recent call last):\n  File "/opt/onyx/x.py", line 1, in f\n    code()\n'
    write(at, 1, "rank-0.log", f"{trace}ValueError: /opt/secret/place/model is gone, {at.home}/jobs, hf_topsecret\n")
    (line,) = texts(at)
    assert line == "ValueError: …/model is gone, ONYX_HOME/jobs, [hidden]"


def test_other_files_beside_the_attempts_are_not_shown(here: Settings) -> None:
    write(here, 1, "rank-0.log", "one\n")
    attempts = here.job_dir(JOB) / "attempts"
    for name in ("notes", "1 (copy)", "-1", "²", "1e3"):
        (attempts / name).mkdir()
        (attempts / name / "rank-0.log").write_text("stray\n")
    (attempts / "1" / "folder.log").mkdir()
    (attempts / "1" / "gone.log").symlink_to(attempts / "nowhere")
    assert texts(here) == ["one"]


def test_a_log_that_is_deleted_meanwhile_is_no_error(here: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    write(here, 1, "rank-0.log", "one\n")
    write(here, 1, "rank-1.log", "two\n")

    def clean_up(line: str, _: Settings) -> str:
        (here.job_dir(JOB) / "attempts" / "1" / "rank-1.log").unlink()
        return line

    monkeypatch.setattr(results, "scrub", clean_up)
    assert texts(here) == ["one"]


def test_a_very_long_line_is_cut(here: Settings) -> None:
    write(here, 1, "rank-0.log", "x" * (results.LONGEST_LINE + 10) + "\nnext\n")
    assert [len(text) for text in texts(here)] == [MOST_CHARACTERS, 10, 4]
