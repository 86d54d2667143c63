"""Hostile input against a real server process: each answer is a 4xx with a message, memory stays flat, the service up.

Vulnerabilities of similar projects, and the tests that show that Onyx does not have them:
- CVE-2024-52803, a shell run with the user's output_dir: test_no_word_of_a_user_is_run, test_unknown_words_are_refused
- CVE-2025-53002, torch.load of a user's path: test_nothing_is_unpickled (and tests/training/models)
- CVE-2026-58116, trust_remote_code through the model's path: test_remote_code_cannot_be_asked_for
- CVE-2026-1839, an unsafe random state on resume: test_nothing_is_unpickled; checkpoints are safetensors and JSON
- CVE-2026-2614, -116690, -53995, traversal, in ids too: test_traversal_in_every_string
- CVE-2023-48022, a job API without authentication: tests/api/http/test_caller.py, test_strangers_are_refused
- a default secret that defeats the API keys: test_there_is_no_default_secret
"""

import ast
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from onyx.settings import Settings
from tests.acceptance.api_server import ApiServer, api_server
from tests.api.service import AT, BODY
from tests.waiting import PATIENCE, wait_for

MIB = 2**20
TRAIN = f"{AT}/training/with-accumulation"
JSON = {"Content-Type": "application/json"}
SECONDS = PATIENCE
"""The longest that an answer may take, for any input."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """One server for all tests: it must survive the input of each."""
    home: Path = tmp_path_factory.mktemp("hostile") / "home"
    root = home.parent / "data"
    root.mkdir()
    limits: dict[str, Any] = {"planning_rate_limit": "0/hour", "streams_per_caller": 2}
    with api_server(home, embedded_runner=False, data_root=root, model_root=root, **limits) as running:
        yield running
        assert "Traceback" not in running.log, running.log[running.log.index("Traceback") - 500 :][:6000]


@pytest.fixture
def client(running: ApiServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=running.url, timeout=SECONDS) as client:
        yield client
        assert running.answers()


def sentence(answer: httpx.Response) -> str:
    """The error message of the answer, after checking that it is a short 4xx without a traceback."""
    assert 400 <= answer.status_code < 500, (answer.status_code, answer.text[:500])
    detail = answer.json()["detail"]
    assert isinstance(detail, str)
    assert len(detail) < 10_000
    assert "Traceback" not in detail
    assert 'File "' not in detail
    return detail


def test_a_gigabyte_that_says_so_is_refused_unread(running: ApiServer, client: httpx.Client) -> None:
    before = running.memory
    with running.connect() as wire:
        head = f"POST {TRAIN} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {2**30}"
        wire.sendall(f"{head}\r\n\r\n".encode())
        assert b" 413 " in wire.recv(4096).partition(b"\r\n")[0]
    assert running.memory - before < 16 * MIB


def test_a_gigabyte_in_chunks_is_left_while_it_comes(running: ApiServer, client: httpx.Client) -> None:
    before, sent = running.memory, 0
    part = b"x" * MIB
    with running.connect() as wire:
        head = (
            f"POST {TRAIN} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked"
        )
        wire.sendall(f"{head}\r\n\r\n".encode())
        try:
            while sent < 2**30:
                wire.sendall(b"%x\r\n%s\r\n" % (len(part), part))
                sent += len(part)
        except (ConnectionError, TimeoutError):
            pass  # the server has closed the connection, as it should
    assert sent < 128 * MIB
    assert running.memory - before < 128 * MIB


def test_many_values_in_few_bytes_do_not_fill_the_memory(running: ApiServer, client: httpx.Client) -> None:
    before = running.memory
    for text in (b'{"rows": [' + b"{}," * (8 * MIB) + b"{}]}", b"[" * (24 * MIB), b'"' + b'\\"' * (8 * MIB)):
        sentence(client.post(TRAIN, content=text, headers=JSON))
    assert running.memory - before < 160 * MIB


def test_slow_clients_hold_their_connection_and_nothing_else(running: ApiServer, client: httpx.Client) -> None:
    wires = [running.connect() for _ in range(50)]
    try:
        for number, wire in enumerate(wires):
            head = f"POST {TRAIN} HTTP/1.1\r\nHost: localhost\r\n"
            wire.sendall(head.encode() if number % 2 else f"{head}Content-Length: 1000\r\n\r\n".encode())
        before = running.memory
        for _ in range(3):
            for wire in wires:
                wire.sendall(b"a")
            assert client.get(f"{AT}/stats").status_code == 200
            assert client.post(f"{AT}/config", json={}).status_code == 200
        assert running.memory - before < 16 * MIB
    finally:
        for wire in wires:
            wire.close()


def test_a_stream_takes_one_of_few_places_and_gives_it_back(client: httpx.Client) -> None:
    job = client.post(TRAIN, json=BODY).json()["training_id"]
    events, header = f"{AT}/training/{job}/events", {"Accept": "text/event-stream"}
    with client.stream("GET", events, headers=header) as one, client.stream("GET", events, headers=header) as two:
        reading = [each.iter_lines() for each in (one, two)]
        assert all(map(next, reading))
        with client.stream("GET", events, headers=header) as third:
            assert third.status_code == 429
        assert client.post(f"{TRAIN}?wait=1", json=BODY).status_code == 429
        assert client.get(events).status_code == 200
    wait_for(lambda: client.post(f"{TRAIN}?wait=0.1", json=BODY).status_code != 429, "its place is free")
    client.post(f"{AT}/training/{job}/cancel")
    assert client.get(events, headers=header).text.rstrip().splitlines()[-2] == "event: done"


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
        b"[" * 10_000,
        b'{"model_name": "onyx/tiny", "dataset_config": {"texts": ["a"]}, "user_id": NaN}',
        b'{"model_name": "onyx/tiny", "dataset_config": {"rows": [{"n": Infinity}]}, "user_id": 1}',
        b'{"model_name": "onyx/tiny", "dataset_config": {"rows": [{"n": 1e999}]}, "user_id": 1}',
        b'{"target_effective_batch_size": ' + b"9" * 100_000 + b"}",
        b'{"target_effective_batch_size": 1' + b"0" * 300 + b"}",
        b'{"user_id": -' + b"9" * 30 + b"}",
        b'{"model_name": "\\ud800"}',
        b"\x00",
        b"\xff\xfe{\x00}\x00",
        b"PK\x03\x04" + bytes(1000),
    ],
    ids=lambda text: repr(text[:30]),
)
def test_bodies_that_are_no_bodies(client: httpx.Client, text: bytes) -> None:
    for path in (TRAIN, f"{AT}/config", f"{AT}/optimize", f"{AT}/calculate-batch-size"):
        sentence(client.post(path, content=text, headers=JSON))


WRONG: list[Any] = [None, True, -1, 0, 1.5, 10**30, "", "\x00", [], [[]], {}, {"a": {"b": []}}, "x" * MIB]


@pytest.mark.parametrize("field", [*BODY, "target_effective_batch_size", "accumulation_steps", "world_size", "rank"])
def test_wrong_types_and_sizes_in_every_field(client: httpx.Client, field: str) -> None:
    for value in WRONG:
        answer = client.post(TRAIN, json=BODY | {"training_config": {"epochs": 1}, field: value})
        if answer.status_code != 202:  # null is valid for an optional field, and 0 is a valid user_id
            sentence(answer)


def strings(schema: dict[str, Any], shapes: dict[str, Any]) -> Iterator[list[str]]:
    """Where a body can hold any string: paths of keys."""
    if "$ref" in schema:
        schema = shapes[schema["$ref"].rsplit("/", 1)[1]]
    for each in schema.get("anyOf", []):
        yield from strings(each, shapes)
    if schema.get("type") == "string" and not {"enum", "const"} & set(schema):
        yield []
    if schema.get("type") == "array":
        yield from ([*("[]",), *rest] for rest in strings(schema.get("items", {}), shapes))
    for name, each in schema.get("properties", {}).items():
        yield from ([name, *rest] for rest in strings(each, shapes))


def filled(place: list[str], value: str) -> Any:
    if not place:
        return value
    inner = filled(place[1:], value)
    return [inner] if place[0] == "[]" else {place[0]: inner}


def joined(one: Any, other: Any) -> Any:
    if isinstance(one, dict) and isinstance(other, dict):
        return one | {name: joined(one.get(name), value) for name, value in other.items()}
    return other


TRAVERSAL = [
    "../../../../etc/passwd",
    "/etc/passwd",
    "..\\..\\x",
    "%2e%2e%2fetc",
    "~root/.ssh/id_rsa",
    "file:///etc/passwd",
    "a\x00.jsonl",
    "$(touch /tmp/onyx-was-here)",
    "; id #",
    "__import__('os')",
]


def test_traversal_in_every_string_of_every_body(client: httpx.Client) -> None:
    """No field of a body makes the service return a file of the host."""
    schema = client.get("/openapi.json").json()
    shapes, tried = schema["components"]["schemas"], 0
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            if "requestBody" not in operation or not path.startswith(AT):
                continue  # OpenAI's routes have tests of their own
            shape = operation["requestBody"]["content"]["application/json"]["schema"]
            start = shapes[shape["$ref"].rsplit("/", 1)[1]]["examples"][0]
            for place in strings(shape, shapes):
                for value in TRAVERSAL:
                    body = joined(start, filled(place, value))
                    if place[:1] == ["dataset_config"] and place[1] in ("rows", "file_id", "path", "hub"):
                        body["dataset_config"].pop("texts", None)
                    answer = client.request(
                        method, path.replace("{training_id}", "accumulation_1_0123456789"), json=body
                    )
                    assert answer.status_code < 500, (path, place, value, answer.text)
                    assert "root:x:" not in answer.text
                    tried += 1
                    if place[-1] in ("path", "file_id", "evaluation_path", "evaluation_file_id"):
                        sentence(answer)
    assert tried > 100
    assert not Path("/tmp/onyx-was-here").exists()  # noqa: S108


def test_traversal_in_every_query_and_path(client: httpx.Client) -> None:
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        for method, operation in methods.items():
            names = [each["name"] for each in operation.get("parameters", []) if each["in"] == "query"]
            for value in TRAVERSAL:
                where = path.replace("{training_id}", httpx.URL("http://x", params={"q": value}).query.decode()[2:])
                answer = client.request(method, where, params=dict.fromkeys(names, value))
                assert answer.status_code < 500 or path == "/readyz", (where, answer.text)
                assert "root:x:" not in answer.text


def test_a_model_name_of_a_megabyte(running: ApiServer, client: httpx.Client) -> None:
    name = "x" * MIB
    sentence(client.post(TRAIN, json=BODY | {"model_name": name}))
    sentence(client.post(f"{AT}/calculate-batch-size", json={"model_name": name, "target_effective_batch_size": 8}))
    with running.connect() as wire:
        wire.sendall(f"GET {AT}/calculate-batch-size?model_name={name} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert wire.recv(4096).startswith(b"HTTP/1.1 4")


@pytest.mark.parametrize("header", ["Host", "Origin"])
def test_web_pages_are_refused(client: httpx.Client, header: str) -> None:
    answer = client.post(f"{AT}/config", json={}, headers={header: "http://evil.example"})
    assert answer.status_code == 403
    sentence(answer)


@pytest.mark.parametrize("forged", ["127.0.0.1", "testclient", "10.0.0.1", "::1", "unix:"])
def test_a_forged_peer_opens_no_door_to_a_web_page(client: httpx.Client, forged: str) -> None:
    headers = {"Host": "evil.example", "X-Forwarded-For": forged, "Forwarded": f"for={forged}"}
    assert client.get(f"{AT}/stats", headers=headers).status_code in (401, 403)


def test_strangers_are_refused(tmp_path: Path) -> None:
    """A client that does not come from a loopback address is refused without a key."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this host has no other address")
        address = probe.getsockname()[0]
    with api_server(tmp_path / "home", host="0.0.0.0", embedded_runner=False) as open_server:  # noqa: S104
        answer = httpx.get(f"http://{address}:{open_server.port}{AT}/stats", timeout=SECONDS)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"


def test_remote_code_cannot_be_asked_for(client: httpx.Client) -> None:
    for more in ({"trust_remote_code": True}, {"training_config": {"trust_remote_code": True}}):
        assert "trust_remote_code" in sentence(client.post(TRAIN, json=BODY | more))


@pytest.mark.parametrize("word", ["output_dir", "resume_from_checkpoint", "callback", "entrypoint", "runtime_env"])
def test_unknown_words_are_refused(client: httpx.Client, word: str) -> None:
    assert word in sentence(client.post(TRAIN, json=BODY | {word: "/tmp/x"}))  # noqa: S108


def library() -> Iterator[tuple[Path, ast.AST]]:
    for path in sorted((Path(__file__).parents[2] / "onyx").rglob("*.py")):
        yield from ((path, node) for node in ast.walk(ast.parse(path.read_text())))


def test_no_word_of_a_user_is_run() -> None:
    """No shell, no eval, and no code of a model that the operator has not named."""
    for path, node in library():
        if isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant):
            assert (node.arg, node.value.value) not in (("shell", True), ("trust_remote_code", True)), path
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("eval", "exec", "__import__"), path
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) not in (("os", "system"), ("os", "popen")), path


def test_nothing_is_unpickled() -> None:
    for path, node in library():
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [each.name for each in node.names] + [getattr(node, "module", None) or ""]
            assert not {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"} & set(names), path
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) != ("torch", "load"), path
        if isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant):
            assert (node.arg, node.value.value) != ("allow_pickle", True), path


def test_there_is_no_default_secret(tmp_path: Path) -> None:
    """Keys are random and created by the operator; no setting has a default secret."""
    fresh = json.loads(Settings(home=tmp_path).model_dump_json())
    assert not [name for name, value in fresh.items() if re.search("secret|token$|password|key", name) and value]
