"""No answer tells a path of the host or a secret, whoever's words it repeats."""

import sys
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from onyx.api.http.scrubbing import MOST_CHARACTERS, scrub, scrub_all
from onyx.settings import Settings
from onyx.training.contract.attempt import Event, Failure
from tests.api.lives import end
from tests.api.service import AT, make_job, service, settings

TOKEN = "a-hub-token-of-the-operator"  # noqa: S105
PASSWORD = "correct-horse-battery"  # noqa: S105


@pytest.fixture
def at(tmp_path: Path) -> Settings:
    """A service with something to hide."""
    roots = {name: tmp_path / name for name in ("model_root", "data_root")}
    return settings(tmp_path / "home", hub_token=TOKEN, **roots)


def told(at: Settings) -> str:
    """What a library may say when something is wrong."""
    return (
        f"cannot read {at.home}/jobs/x/model, {at.model_root}/llama or '{at.data_root}/a.jsonl' "
        f"from {sys.prefix}/lib/x.py with /etc/onyx/onyx.env and {TOKEN}"
    )


def is_clean(text: str, at: Settings) -> bool:
    return not [word for word in (str(at.home.parent), sys.prefix, "/etc", TOKEN) if word in text]


def test_places_have_names_and_other_paths_their_last_part(at: Settings) -> None:
    text = scrub(told(at), at)
    assert text == (
        "cannot read ONYX_HOME/jobs/x/model, ONYX_MODEL_ROOT/llama or 'ONYX_DATA_ROOT/a.jsonl' "
        "from PYTHON/lib/x.py with …/onyx.env and [hidden]"
    )


def test_a_databases_password_is_a_secret_but_no_word_of_ours(at: Settings) -> None:
    url = f"postgresql://onyx:{PASSWORD}@db/onyx"
    away = at.model_copy(update={"database_url": url})
    assert scrub(f"{url} {PASSWORD}", away) == "postgresql://onyx:[hidden]@db/onyx [hidden]"
    weak = at.model_copy(update={"database_url": "postgresql://onyx:onyx@db/onyx"})
    assert scrub("onyx/tiny at postgresql://onyx:onyx@db/onyx", weak).startswith("onyx/tiny at postgresql://onyx:[hid")


def test_what_has_no_path_stays_as_it_is(at: Settings) -> None:
    for text in ("onyx/tiny does not fit: 3/4 of 8 GB", "line 3: and/or", "a/b/c", ""):
        assert scrub(text, at) == text
    assert len(scrub("x" * 10_000, at)) == MOST_CHARACTERS


def test_texts_are_found_wherever_they_are(at: Settings) -> None:
    value = {"a": [f"{at.home}/x", 1, None, {"b": (TOKEN, 2.5)}], "c": True}
    assert scrub_all(value, at) == {"a": ["ONYX_HOME/x", 1, None, {"b": ["[hidden]", 2.5]}], "c": True}


def everything(client: TestClient, job: str) -> dict[str, str]:
    """Whatever can be looked at, of this job and beside it."""
    found = {}
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        if "get" in methods:
            where = path.replace("{training_id}", job).replace("{fine_tuning_job_id}", job)
            found[where] = client.get(where, params={"model_name": "onyx/tiny", "limit": 100}).text
    stream = f"{AT}/training/{job}/events"
    found["the stream"] = client.get(stream, headers={"Accept": "text/event-stream"}).text
    return found


def test_a_failed_job_tells_both_apis_no_path(at: Settings) -> None:
    tight = at.model_copy(update={"planning_rate_limit": "0/hour"})
    findings: list[dict[str, Any]] = [{"line": 3, "message": told(at)}]
    failure = Failure(code="bad_data", message=told(at), param="data", findings=findings)
    warning = Event(line=1, time=1.0, kind="message", level="warn", message=told(at), data={"where": [told(at)]})
    with service(tight) as client:
        job = make_job(client)
        end(tight, failure, warning)
        answers = everything(client, job)
    repeated = [path for path, text in answers.items() if "cannot read ONYX_HOME/jobs/x/model" in text]
    assert {f"{AT}/training/{job}", f"{AT}/training/{job}/events", "the stream"} <= set(repeated)
    assert {f"/v1/fine_tuning/jobs/{job}", f"/v1/fine_tuning/jobs/{job}/events"} <= set(repeated)
    assert [path for path, text in answers.items() if not is_clean(text, at)] == []
