"""No answer has a path of the host or a secret, also when it repeats the error of a library."""

import sys
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from onyx.api.http.scrubbing import MOST_CHARACTERS, scrub, scrub_all
from onyx.settings import Settings
from onyx.training.contract.attempt import Event, Failure
from tests.api.job_states import end_job
from tests.api.service import AT, make_job, service, settings

TOKEN = "a-hub-token-of-the-operator"  # noqa: S105
PASSWORD = "correct-horse-battery"  # noqa: S105


@pytest.fixture
def at(tmp_path: Path) -> Settings:
    """Settings with directories and a secret to hide."""
    roots = {name: tmp_path / name for name in ("model_root", "data_root")}
    return settings(tmp_path / "home", hub_token=TOKEN, **roots)


def library_error(at: Settings) -> str:
    """A message like those of libraries: with paths and a secret."""
    return (
        f"cannot read {at.home}/jobs/x/model, {at.model_root}/llama or '{at.data_root}/a.jsonl' "
        f"from {sys.prefix}/lib/x.py with /etc/onyx/onyx.env and {TOKEN}"
    )


def is_clean(text: str, at: Settings) -> bool:
    return not [word for word in (str(at.home.parent), sys.prefix, "/etc", TOKEN) if word in text]


def test_known_directories_get_a_name_and_other_paths_keep_their_last_part(at: Settings) -> None:
    text = scrub(library_error(at), at)
    assert text == (
        "cannot read ONYX_HOME/jobs/x/model, ONYX_MODEL_ROOT/llama or 'ONYX_DATA_ROOT/a.jsonl' "
        "from PYTHON/lib/x.py with …/onyx.env and [hidden]"
    )


def test_a_database_password_is_hidden_but_a_common_word_only_inside_of_urls(at: Settings) -> None:
    url = f"postgresql://onyx:{PASSWORD}@db/onyx"
    strong = at.model_copy(update={"database_url": url})
    assert scrub(f"{url} {PASSWORD}", strong) == "postgresql://onyx:[hidden]@db/onyx [hidden]"
    weak = at.model_copy(update={"database_url": "postgresql://onyx:onyx@db/onyx"})
    assert scrub("onyx/tiny at postgresql://onyx:onyx@db/onyx", weak).startswith("onyx/tiny at postgresql://onyx:[hid")


def test_text_without_a_path_stays_the_same(at: Settings) -> None:
    for text in ("onyx/tiny does not fit: 3/4 of 8 GB", "line 3: and/or", "a/b/c", ""):
        assert scrub(text, at) == text
    assert len(scrub("x" * 10_000, at)) == MOST_CHARACTERS


def test_texts_inside_of_json_are_scrubbed(at: Settings) -> None:
    value = {"a": [f"{at.home}/x", 1, None, {"b": (TOKEN, 2.5)}], "c": True}
    assert scrub_all(value, at) == {"a": ["ONYX_HOME/x", 1, None, {"b": ["[hidden]", 2.5]}], "c": True}


def everything(client: TestClient, job: str) -> dict[str, str]:
    """The text of every GET route, with this job's id, and of its event stream."""
    found = {}
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        if "get" in methods:
            url = path.replace("{training_id}", job).replace("{fine_tuning_job_id}", job)
            found[url] = client.get(url, params={"model_name": "onyx/tiny", "limit": 100}).text
    stream = f"{AT}/training/{job}/events"
    found["the stream"] = client.get(stream, headers={"Accept": "text/event-stream"}).text
    return found


def test_neither_api_shows_a_path_of_a_failed_job(at: Settings) -> None:
    tight = at.model_copy(update={"planning_rate_limit": "0/hour"})
    findings: list[dict[str, Any]] = [{"line": 3, "message": library_error(at)}]
    failure = Failure(code="bad_data", message=library_error(at), param="data", findings=findings)
    warning = Event(
        line=1, time=1.0, kind="message", level="warn", message=library_error(at), data={"where": [library_error(at)]}
    )
    with service(tight) as client:
        job = make_job(client)
        end_job(tight, failure, warning)
        answers = everything(client, job)
    repeated = [path for path, text in answers.items() if "cannot read ONYX_HOME/jobs/x/model" in text]
    assert {f"{AT}/training/{job}", f"{AT}/training/{job}/events", "the stream"} <= set(repeated)
    assert {f"/v1/fine_tuning/jobs/{job}", f"/v1/fine_tuning/jobs/{job}/events"} <= set(repeated)
    assert [path for path, text in answers.items() if not is_clean(text, at)] == []
