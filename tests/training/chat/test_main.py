"""The process that holds a model, spoken to over its socket. It runs in a thread here; acceptance tests start it."""

import resource
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from onyx.training.chat.main import Conversation, load
from onyx.training.contract.chat_protocol import STOP, GenerateRequest, LoadRequest, Reply
from onyx.training.contract.errors import UserError
from onyx.training.contract.prepared import Roots
from onyx.training.models.load import load_model
from onyx.training.models.tiny import make_tiny

GB = 2**30
MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    """A model's process limits its memory; this one goes on."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def choice(home: Path, model: str = "onyx/tiny", memory: int = 4 * GB, **roots: Any) -> LoadRequest:
    return LoadRequest(model=model, roots=Roots(home=home, **roots), memory=memory)


class Line:
    """The asker's end of a conversation."""

    def __init__(self) -> None:
        self.socket, other = socket.socketpair()
        self.socket.settimeout(600)
        self._lines = self.socket.makefile("rb")
        self._thread = threading.Thread(target=_hold, args=(other,))
        self._thread.start()

    def say(self, value: LoadRequest | GenerateRequest) -> None:
        self.socket.sendall(value.model_dump_json().encode() + b"\n")

    def hear(self) -> list[Reply]:
        """Up to the line that is the last for now."""
        heard = [Reply.model_validate_json(self._lines.readline())]
        while not heard[-1].last:
            heard.append(Reply.model_validate_json(self._lines.readline()))
        return heard

    def ended(self) -> bool:
        return self._lines.readline() == b""

    def close(self) -> None:
        self._lines.close()
        self.socket.close()
        self._thread.join(600)
        assert not self._thread.is_alive()


def _hold(connection: socket.socket) -> None:
    with connection:
        Conversation(connection).hold()


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.close()


def test_one_question_after_the_other(line: Line, home: Path) -> None:
    line.say(choice(home))
    assert line.hear() == [Reply(ready=True)]
    texts = []
    for _ in range(2):
        line.say(GenerateRequest(messages=MESSAGES, max_tokens=30, seed=2))
        *pieces, last = line.hear()
        assert last.end is not None
        assert last.end.completion_tokens == 30
        texts.append("".join(said.text for said in pieces))
    assert texts[0] == texts[1] != ""


def test_a_question_taken_back_costs_the_next_one_nothing(line: Line, home: Path) -> None:
    line.say(choice(home))
    line.hear()
    line.say(GenerateRequest(messages=MESSAGES, max_tokens=1900))
    line.socket.sendall(STOP)
    stopped = line.hear()[-1].failure
    assert stopped is not None
    assert stopped.code == "stopped"
    line.say(GenerateRequest(messages=MESSAGES, max_tokens=3, temperature=0))
    assert line.hear()[-1].end is not None
    line.socket.sendall(STOP)  # late: the answer was whole
    line.say(GenerateRequest(messages=MESSAGES, max_tokens=3, temperature=0))
    assert line.hear()[-1].end is not None


def test_a_question_that_cannot_be_answered(line: Line, home: Path) -> None:
    line.say(choice(home))
    line.hear()
    line.say(GenerateRequest(messages=[{"role": "user", "content": "x" * 3000}], max_tokens=3))
    failure = line.hear()[-1].failure
    assert failure is not None
    assert failure.code == "context_length_exceeded"


def test_a_model_that_is_not_there_ends_it(line: Line, home: Path) -> None:
    line.say(choice(home, "no such model"))
    failure = line.hear()[-1].failure
    assert failure is not None
    assert failure.code == "model_not_found"
    assert line.ended()


def test_an_asker_who_leaves_ends_it(line: Line, home: Path) -> None:
    line.say(choice(home))
    line.hear()
    line.say(GenerateRequest(messages=MESSAGES, max_tokens=1900))  # close() in the fixture: nobody hears the answer


def test_memory_that_a_training_needs_is_not_taken(home: Path) -> None:
    with pytest.raises(UserError, match=r"the model takes 0\.0 GB and 0\.1 GB can be had: trainings come first"):
        load(choice(home, memory=GB // 10))
    with pytest.raises(UserError, match=r"0\.0 GB can be had"):
        load(choice(home, memory=-GB))


def make_adapter(home: Path) -> None:
    """What a job with LoRA publishes, after learning much."""
    model: Any = load_model(make_tiny(home / "models"), method="lora")
    with torch.no_grad():
        for name, each in model.named_parameters():
            if "lora_B" in name:
                each.normal_()
    model.save_pretrained(home / "jobs" / "job_1" / "model")


def test_an_adapter_on_its_base(home: Path) -> None:
    make_adapter(home)
    adapted, plain = load(choice(home, "job_1", jobs=("job_1",))), load(choice(home))
    question = GenerateRequest(messages=MESSAGES, max_tokens=20, temperature=0)
    said: tuple[list[str], list[str]] = ([], [])
    for speaker, pieces in zip((adapted, plain), said, strict=True):
        speaker.answer(question, pieces.append, lambda: True)
    assert "".join(said[0]) != "".join(said[1])
    assert not list((home / "models").glob("merged-*"))  # nothing is written for a question
