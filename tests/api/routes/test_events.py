"""Events as pages and as a stream, of jobs that have ended: then the stream ends, too."""

import json

from starlette.testclient import TestClient

from onyx.api.routes import events as events_module
from onyx.settings import Settings
from onyx.training.contract.attempt import Event
from tests.api.job_states import end_job
from tests.api.service import AT, make_job, service
from tests.jobs.store_harness import RESULT

STREAM = {"Accept": "text/event-stream"}


def blocks(text: str) -> list[dict[str, str]]:
    """Server-sent events, field by field."""
    return [dict(line.split(": ", 1) for line in block.splitlines()) for block in text.strip().split("\n\n")]


def streamed(client: TestClient, job: str, **headers: str) -> list[dict[str, str]]:
    return blocks(client.get(f"{AT}/training/{job}/events", headers=STREAM | headers).text)


def test_a_stream_has_the_events_of_the_pages_and_ends_with_done(here: Settings) -> None:
    lines = [Event(line=n, time=1.0, kind="message", message=f"line {n}") for n in range(1, 4)]
    with service(here) as client:
        job = make_job(client)
        end_job(here, RESULT, *lines)
        pages = client.get(f"{AT}/training/{job}/events", params={"limit": 1000}).json()
        *events, done = streamed(client, job)
        assert [json.loads(event["data"]) for event in events] == pages["data"]
        assert [event["id"] for event in events] == [str(n) for n in range(1, len(events) + 1)]
        assert (done["event"], json.loads(done["data"])["status"]) == ("done", "succeeded")
        assert pages["has_more"] is False
        first = client.get(f"{AT}/training/{job}/events", params={"after": 1, "limit": 1}).json()
        assert (first["data"], first["has_more"]) == (pages["data"][1:2], True)


def test_a_stream_continues_after_the_last_event_id(here: Settings) -> None:
    with service(here) as client:
        job = make_job(client)
        client.post(f"{AT}/training/{job}/cancel")
        whole = streamed(client, job)
        assert streamed(client, job, **{"Last-Event-ID": "1"}) == whole[1:]
        assert streamed(client, job, **{"Last-Event-ID": "no number"}) == whole
        assert streamed(client, job, **{"Last-Event-ID": "9" * 18}) == whole[-1:]


def test_more_events_than_a_page_come_in_one_stream(here: Settings) -> None:
    count = 2 * events_module.PAGE
    lines = [Event(line=n, time=1.0, kind="message", message=str(n)) for n in range(1, count + 1)]
    with service(here) as client:
        job = make_job(client)
        end_job(here, RESULT, *lines)
        numbers = [int(event["id"]) for event in streamed(client, job)[:-1]]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > count
