"""The chat process over its socket. Here it runs in a thread; the acceptance tests start the process."""

import resource
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from onyx.training.chat.main import ChatConnection, load
from onyx.training.contract.chat_protocol import STOP, GenerateRequest, LoadRequest, Reply
from onyx.training.contract.errors import UserError
from onyx.training.contract.prepared import Roots
from onyx.training.models.load import load_model
from onyx.training.models.tiny import make_tiny

GB = 2**30
MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    """The chat process limits its own memory, which this process must undo after each test."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def load_request(home: Path, model: str = "onyx/tiny", memory: int = 4 * GB, **roots: Any) -> LoadRequest:
    return LoadRequest(model=model, roots=Roots(home=home, **roots), memory=memory)


class Client:
    """The other end of the socket."""

    def __init__(self) -> None:
        self.socket, other = socket.socketpair()
        self.socket.settimeout(600)
        self._lines = self.socket.makefile("rb")
        self._thread = threading.Thread(target=_serve, args=(other,))
        self._thread.start()

    def send(self, request: LoadRequest | GenerateRequest) -> None:
        self.socket.sendall(request.model_dump_json().encode() + b"\n")

    def receive(self) -> list[Reply]:
        """Up to the line that ends the answer."""
        replies = [Reply.model_validate_json(self._lines.readline())]
        while not replies[-1].last:
            replies.append(Reply.model_validate_json(self._lines.readline()))
        return replies

    def ended(self) -> bool:
        return self._lines.readline() == b""

    def close(self) -> None:
        self._lines.close()
        self.socket.close()
        self._thread.join(600)
        assert not self._thread.is_alive()


def _serve(connection: socket.socket) -> None:
    with connection:
        ChatConnection(connection).serve()


@pytest.fixture
def client() -> Iterator[Client]:
    client = Client()
    yield client
    client.close()


def test_requests_are_answered_one_after_the_other(client: Client, home: Path) -> None:
    client.send(load_request(home))
    assert client.receive() == [Reply(ready=True)]
    texts = []
    for _ in range(2):
        client.send(GenerateRequest(messages=MESSAGES, max_tokens=30, seed=2))
        *pieces, last = client.receive()
        assert last.end is not None
        assert last.end.completion_tokens == 30
        texts.append("".join(reply.text for reply in pieces))
    assert texts[0] == texts[1] != ""


def test_a_cancelled_request_does_not_disturb_the_next(client: Client, home: Path) -> None:
    client.send(load_request(home))
    client.receive()
    client.send(GenerateRequest(messages=MESSAGES, max_tokens=1900))
    client.socket.sendall(STOP)
    stopped = client.receive()[-1].failure
    assert stopped is not None
    assert stopped.code == "stopped"
    client.send(GenerateRequest(messages=MESSAGES, max_tokens=3, temperature=0))
    assert client.receive()[-1].end is not None
    client.socket.sendall(STOP)  # too late: the answer was complete
    client.send(GenerateRequest(messages=MESSAGES, max_tokens=3, temperature=0))
    assert client.receive()[-1].end is not None


def test_a_request_that_cannot_be_answered(client: Client, home: Path) -> None:
    client.send(load_request(home))
    client.receive()
    client.send(GenerateRequest(messages=[{"role": "user", "content": "x" * 3000}], max_tokens=3))
    failure = client.receive()[-1].failure
    assert failure is not None
    assert failure.code == "context_length_exceeded"


def test_a_model_that_does_not_exist_ends_the_process(client: Client, home: Path) -> None:
    client.send(load_request(home, "no such model"))
    failure = client.receive()[-1].failure
    assert failure is not None
    assert failure.code == "model_not_found"
    assert client.ended()


def test_a_client_that_disconnects_ends_the_process(client: Client, home: Path) -> None:
    client.send(load_request(home))
    client.receive()
    client.send(GenerateRequest(messages=MESSAGES, max_tokens=1900))  # the fixture closes the socket during the answer


def test_a_model_that_does_not_fit_beside_trainings_is_refused(home: Path) -> None:
    with pytest.raises(UserError, match=r"the model needs 0\.0 GB, and 0\.1 GB are available: trainings come first"):
        load(load_request(home, memory=GB // 10))
    with pytest.raises(UserError, match=r"0\.0 GB are available"):
        load(load_request(home, memory=-GB))


def make_adapter(home: Path) -> None:
    """What a job with LoRA publishes, with large weights."""
    model: Any = load_model(make_tiny(home / "models"), method="lora")
    with torch.no_grad():
        for name, each in model.named_parameters():
            if "lora_B" in name:
                each.normal_()
    model.save_pretrained(home / "jobs" / "job_1" / "model")


def test_an_adapter_on_its_base(home: Path) -> None:
    make_adapter(home)
    adapted, plain = load(load_request(home, "job_1", jobs=("job_1",))), load(load_request(home))
    request = GenerateRequest(messages=MESSAGES, max_tokens=20, temperature=0)
    answers: tuple[list[str], list[str]] = ([], [])
    for model, pieces in zip((adapted, plain), answers, strict=True):
        model.answer(request, pieces.append, lambda: True)
    assert "".join(answers[0]) != "".join(answers[1])
    assert not list((home / "models").glob("merged-*"))  # a chat writes nothing to disk
