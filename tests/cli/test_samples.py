import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from onyx.cli.client import ServiceClient
from onyx.cli.output import CommandError
from onyx.cli.samples import INLINE_BYTES, dataset_config

UNREACHABLE = "http://127.0.0.1:9"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_small_files_travel_as_rows(tmp_path: Path) -> None:
    service = ServiceClient(UNREACHABLE)
    lines = write(tmp_path / "a.jsonl", '{"text": "one"}\n\n{"text": "two"}\n')
    assert dataset_config(lines, service) == {"rows": [{"text": "one"}, {"text": "two"}]}
    assert dataset_config(write(tmp_path / "b.txt", "one\ntwo\n"), service) == {
        "rows": [{"text": "one"}, {"text": "two"}]
    }
    chats = 'messages,other\n"[{""role"": ""user"", ""content"": ""hi""}]",7\n'
    found = dataset_config(write(tmp_path / "c.csv", chats), service)
    assert found == {"rows": [{"messages": [{"role": "user", "content": "hi"}], "other": "7"}]}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.jsonl", '{"text": "fine"}\n{"text": \n', "line 2"),
        ("a.jsonl", "[1, 2]\n", "line 1"),
        ("a.jsonl", '{"text": 1, "text": 2}', "twice"),
        ("a.parquet", "", "--data-path"),
        ("a.csv", "text\n\udcff", "a.csv"),
    ],
)
def test_unreadable_samples_are_refused_with_their_line(tmp_path: Path, name: str, text: str, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(CommandError, match=words) as caught:
        dataset_config(path, ServiceClient(UNREACHABLE))
    assert caught.value.status == 2


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="cannot be read"):
        dataset_config(tmp_path / "nothing.txt", ServiceClient(UNREACHABLE))


class Files(BaseHTTPRequestHandler):
    """Accepts any upload, as `/v1/files` does."""

    bodies: tuple[bytes, ...] = ()

    def do_POST(self) -> None:
        assert self.path == "/v1/files"
        body = self.rfile.read(int(self.headers["Content-Length"]))
        Files.bodies += (body,)
        answer = json.dumps({"id": "file-7"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Writes nothing to stderr."""


@pytest.fixture
def files() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Files)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_large_files_are_uploaded_as_jsonl(tmp_path: Path, files: str) -> None:
    path = write(tmp_path / "large.txt", "a line of text\n" * (INLINE_BYTES // 15 + 1))
    assert dataset_config(path, ServiceClient(files)) == {"file_id": "file-7"}
    assert b'{"text": "a line of text"}\n' in Files.bodies[-1]
    assert b'name="purpose"\r\n\r\nfine-tune' in Files.bodies[-1]
    assert b'filename="large.jsonl"' in Files.bodies[-1]
