"""Chat with OpenAI's own client against a real service: before, during and after a training."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import psutil
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.acceptance.api_server import ApiServer, api_server, runners_of
from tests.acceptance.runner_home import alive
from tests.jobs.playground.test_manager import ROOM, limit_growth, make_wide
from tests.waiting import PATIENCE, wait_for

MESSAGES: Any = [{"role": "system", "content": "You know squares."}, {"role": "user", "content": "What is 3 squared?"}]
ANSWER = "It is 9."
MORE_THAN_THERE_IS = "4000GB"
"""Makes a running training take all memory, so that none is left for a model to try."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with api_server(tmp_path_factory.mktemp("chat"), try_queue=3, cpu_memory=MORE_THAN_THERE_IS) as it:
        yield it


def client_of(server: ApiServer, **more: Any) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, _strict_response_validation=True, **more)


@pytest.fixture(scope="module")
def client(server: ApiServer) -> Iterator[OpenAI]:
    with client_of(server) as client:
        yield client


def train(client: OpenAI, samples: int = 16, epochs: int = 40, batch: int = 8) -> str:
    """Start a fine-tune that learns one answer by heart, and return its id."""
    chat = [*MESSAGES, {"role": "assistant", "content": ANSWER}]
    data = "".join(json.dumps({"messages": chat}) + "\n" for _ in range(samples)).encode()
    file = client.files.create(file=("squares.jsonl", data), purpose="fine-tune")
    job = client.fine_tuning.jobs.create(
        model="onyx/tiny",
        training_file=file.id,
        method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": epochs, "batch_size": batch}}},
        extra_body={"onyx": {"learning_rate": 1e-2, "max_length": 128}},
    )
    return job.id


def reach(client: OpenAI, job: str, status: str) -> Any:
    """Wait until the job has the status, and return it."""
    found: list[Any] = []

    def reached() -> bool:
        found[:] = [client.fine_tuning.jobs.retrieve(job)]
        assert found[0].status == status or found[0].status not in ("failed", "cancelled", "succeeded"), found[0]
        return bool(found[0].status == status)

    wait_for(reached, f"{job} is {status}")
    return found[0]


def tries(server: ApiServer) -> list[psutil.Process]:
    """The processes with a model that is being tried."""
    return children(server, "onyx-try")


def children(server: ApiServer, name: str) -> list[psutil.Process]:
    """The runner's descendants with this name."""
    found = [
        child for pid in runners_of(server.settings.home) for child in psutil.Process(pid).children(recursive=True)
    ]
    return [process for process in alive(found) if process.name() == name]


def test_a_lesson_shows(server: ApiServer, client: OpenAI) -> None:
    def said(model: str, **more: Any) -> Any:
        return client.chat.completions.create(model=model, messages=MESSAGES, temperature=0, max_tokens=40, **more)

    before = said("onyx/tiny")
    assert before.choices[0].message.content != ANSWER
    assert before.choices[0].finish_reason == "length"
    job = train(client)
    tuned = reach(client, job, "succeeded").fine_tuned_model
    checkpoint = client.fine_tuning.jobs.checkpoints.list(job).data[0].fine_tuned_model_checkpoint
    for name in (tuned, checkpoint, job, f"{job}:epoch-40"):
        after = said(name)
        assert (after.choices[0].message.content, after.choices[0].finish_reason, after.model) == (ANSWER, "stop", name)
        assert after.usage.completion_tokens == len(ANSWER) + 1  # each byte, and the end
    assert len(tries(server)) == 1
    stopped = said(job, stop=["9"])
    assert (stopped.choices[0].message.content, stopped.choices[0].finish_reason) == ("It is ", "stop")
    assert stopped.usage.total_tokens == stopped.usage.prompt_tokens + stopped.usage.completion_tokens


def test_streams_say_the_same(client: OpenAI) -> None:
    asked: Any = {"model": "onyx/tiny", "messages": MESSAGES, "seed": 5, "max_completion_tokens": 30}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage


def test_the_async_client(server: ApiServer) -> None:
    async def story() -> None:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            asked: Any = {"model": "onyx/tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": 5}
            several = await asyncio.gather(*(client.chat.completions.create(**asked) for _ in range(3)))
            assert len({each.choices[0].message.content for each in several}) == 1
            stream = await client.chat.completions.create(**asked, stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            assert text == several[0].choices[0].message.content

    asyncio.run(story())


def test_a_queue_has_an_end(server: ApiServer, client: OpenAI) -> None:
    long: Any = {"model": "onyx/tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": 1000, "stream": True}
    with client.chat.completions.create(**long) as first:
        next(first)

        async def story() -> None:
            async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as others:
                waiting = [asyncio.create_task(others.chat.completions.create(**long)) for _ in range(3)]
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                with pytest.raises(openai.RateLimitError) as told:
                    done.pop().result()
                assert told.value.code == "queue_full"
                for task in waiting:
                    task.cancel()
                await asyncio.wait(waiting)

        asyncio.run(story())
    # All clients have disconnected: no answer is generated for them, and the next request does not wait.
    client.chat.completions.create(model="onyx/tiny", messages=MESSAGES, max_tokens=1)


def test_errors_are_the_clients_own(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="ft:onyx/tiny:me::0123456789abcdefghijklmn", messages=MESSAGES)
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="onyx/tiny", messages=MESSAGES, n=2)
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "n")


def test_a_killed_process_costs_a_retry(server: ApiServer) -> None:
    with client_of(server).with_options(max_retries=2) as client:
        stream = client.chat.completions.create(model="onyx/tiny", messages=MESSAGES, max_tokens=1000, stream=True)
        next(stream)
        (process,) = tries(server)
        process.kill()
        with pytest.raises(openai.APIError, match="the model's process is gone"):
            list(stream)
        again = client.chat.completions.create(model="onyx/tiny", messages=MESSAGES, max_tokens=1)
        assert again.usage is not None
        assert [each.pid for each in tries(server)] != [process.pid]


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[ApiServer]:
    """A service with a model that needs much memory for a long answer, and with memory left beside a training."""
    make_wide(tmp_path).rename(tmp_path / "models" / "wide")
    with api_server(tmp_path / "home", model_root=tmp_path / "models", cpu_memory="1GB") as it:
        yield it


def test_running_out_of_memory_costs_that_answer_only(narrow: ApiServer) -> None:
    """The memory limit is real: the client gets an error, the training goes on, the next request is answered."""
    hello = [{"role": "user", "content": "hello"}]  # the model's answer to it is printable
    short: Any = {"model": "wide", "messages": hello, "temperature": 0, "max_tokens": 4}
    long = short | {"max_tokens": 1000}
    with client_of(narrow) as client:
        job = train(client, samples=1000, epochs=50, batch=1)
        wait_for(lambda: bool(children(narrow, "onyx-rank-0")), "the training runs")
        ranks = children(narrow, "onyx-rank-0")
        before = client.chat.completions.create(**short).choices[0].message.content
        limit_growth(tries(narrow)[0].pid, ROOM)
        with pytest.raises(openai.InternalServerError, match="not enough memory for an answer this long") as told:
            client.chat.completions.create(**long)
        assert (told.value.status_code, told.value.code, told.value.param) == (503, "no_memory", None)
        assert client.chat.completions.create(**short).choices[0].message.content == before
        limit_growth(tries(narrow)[0].pid, ROOM)
        stream = client.chat.completions.create(**long, stream=True)
        next(stream)
        with pytest.raises(openai.APIError, match="not enough memory for an answer this long") as broken:
            list(stream)
        assert broken.value.code == "no_memory"
        client.chat.completions.create(**short)
        limit_growth(tries(narrow)[0].pid, ROOM)
        raw = httpx2.post(f"{narrow.url}/v1/chat/completions", json=long | {"stream": True}, timeout=PATIENCE).text
        assert raw.startswith("data: "), raw
        *events, last, end = raw.split("\n\n")
        assert len(events) > 10
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "no_memory"
        assert end == ""
        assert client.chat.completions.create(**short).choices[0].message.content == before
        assert client.fine_tuning.jobs.retrieve(job).status == "running"
        assert children(narrow, "onyx-rank-0") == ranks
        client.fine_tuning.jobs.cancel(job)
        reach(client, job, "cancelled")


def test_a_training_comes_first(server: ApiServer, client: OpenAI) -> None:
    """A model that is being tried is unloaded when a training starts, and none is loaded until the training ends."""
    ask: Any = {"model": "onyx/tiny", "messages": MESSAGES, "max_tokens": 1}
    client.chat.completions.create(**ask)
    before = tries(server)
    assert len(before) == 1
    job = train(client, samples=1000, epochs=50, batch=1)
    try:
        reach(client, job, "running")
        wait_for(lambda: not alive(before), "the model that was tried is gone")
        with pytest.raises(openai.InternalServerError, match="trainings come first") as told:
            client.chat.completions.create(**ask)
        assert (told.value.status_code, told.value.code) == (503, "no_memory")
    finally:
        client.fine_tuning.jobs.cancel(job)
    reach(client, job, "cancelled")
    client.chat.completions.create(**ask)
