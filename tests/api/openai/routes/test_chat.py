"""Chat completions against the app in this process; tests/acceptance tests them with OpenAI's own client."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from onyx.settings import Settings
from tests.api.service import service

BODY: dict[str, Any] = {"model": "onyx/tiny", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    settings = Settings(home=tmp_path_factory.mktemp("home"), embedded_runner=False, try_tokens=64)
    with service(settings) as client:
        yield client


def error(client: TestClient, status: int, **more: Any) -> dict[str, Any]:
    answer = client.post("/v1/chat/completions", json=BODY | more)
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    found: dict[str, Any] = answer.json()["error"]
    return found


@pytest.mark.parametrize(
    "name",
    [
        "owner/missing",  # a name on the hub that no job has downloaded
        "ft:onyx/tiny:me::0123456789abcdefghijklmn",
        "ftjob-0123456789abcdefghijklmn",
        "ftjob-0123456789abcdefghijklmn:epoch-1",
        "../../etc",
        "no such model",
    ],
)
def test_an_unknown_model_is_a_404(client: TestClient, name: str) -> None:
    found = error(client, 404, model=name)
    assert (found["code"], found["param"], found["type"]) == ("model_not_found", "model", "invalid_request_error")


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"n": 2}, "n"),
        ({"temperature": 2.5}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 65}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"stop": ["a", ""]}, "stop.1"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"top_k": 5}, "top_k"),
        ({"stream": "perhaps"}, "stream"),
    ],
)
def test_an_invalid_parameter_is_named(client: TestClient, more: dict[str, Any], param: str) -> None:
    assert error(client, 400, **more)["param"] == param


def test_a_streamed_answer_is_the_same_as_a_whole_one(client: TestClient) -> None:
    """Without a runner there is no fork server: a new interpreter runs the model."""
    body = BODY | {"max_tokens": 20, "seed": 4}
    whole = client.post("/v1/chat/completions", json=body).json()
    assert whole["object"] == "chat.completion"
    assert whole["usage"]["total_tokens"] == whole["usage"]["prompt_tokens"] + whole["usage"]["completion_tokens"]
    streamed = client.post(
        "/v1/chat/completions", json=body | {"stream": True, "stream_options": {"include_usage": True}}
    )
    assert streamed.headers["content-type"].startswith("text/event-stream")
    *events, done, rest = streamed.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    first, *pieces, ending, usage = chunks
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(piece["choices"][0]["delta"]["content"] for piece in pieces)
    assert text == whole["choices"][0]["message"]["content"] != ""
    assert ending["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "length"}
    assert (usage["choices"], usage["usage"]) == ([], whole["usage"])
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_a_prompt_that_is_too_long_has_an_error_status_when_streamed_too(client: TestClient) -> None:
    found = error(client, 400, stream=True, messages=[{"role": "user", "content": "x" * 3000}])
    assert (found["code"], found["param"]) == ("context_length_exceeded", "messages")


def test_the_chat_route_imports_no_torch(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = "import sys, onyx.api.openai.routes.chat, onyx.api.app_context; assert 'torch' not in sys.modules, 'torch'"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
