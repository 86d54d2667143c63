import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onyx.api.http.errors import ApiError
from onyx.api.openai.uploads import MOST_PARTS, Form, FormReader, plain_name

TYPE = 'multipart/form-data; boundary="b"'


def part(name: str, content: bytes, filename: str | None = None) -> bytes:
    end = f'; filename="{filename}"' if filename else ""
    return b"--b\r\n" + f'Content-Disposition: form-data; name="{name}"{end}\r\n\r\n'.encode() + content + b"\r\n"


def read(path: Path, body: bytes, *, chunk: int = 1 << 16, most: int = 10_000) -> Form:
    async def stream() -> AsyncIterator[bytes]:
        for start in range(0, len(body), chunk):
            yield body[start : start + chunk]

    return asyncio.run(FormReader(TYPE, path, most).read(stream()))


@given(st.binary(max_size=400).filter(lambda data: b"\r\n--b" not in data), st.integers(1, 80))
def test_the_file_is_the_same_for_all_chunk_sizes(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, chunk: int
) -> None:
    path = tmp_path_factory.mktemp("parts") / "file"
    body = part("file", data, "a b.jsonl") + part("purpose", b"fine-tune") + b"--b--\r\n"
    form = read(path, body, chunk=chunk)
    assert path.read_bytes() == data
    assert form == Form(fields={"purpose": "fine-tune"}, filename="a b.jsonl", size=len(data))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (part("file", b"x" * 101, "f") + b"--b--\r\n", 413),
        (part("file", b"x" * 2_000_000, "f"), 413),
        (part("file", b"x", "f"), 400),
        (part("file", b"x", "f") * 2 + b"--b--\r\n", 400),
        (part("purpose", b"x" * 5000) + b"--b--\r\n", 400),
        (part("a", b"x") * (MOST_PARTS + 1) + b"--b--\r\n", 400),
        (b"nonsense", 400),
        (b"--b\r\nX: y\r\n\r\nz\r\n--b--\r\n", 400),
        (b"", 400),
    ],
)
def test_malformed_forms_are_refused(tmp_path: Path, body: bytes, status: int) -> None:
    with pytest.raises(ApiError) as refused:
        read(tmp_path / "file", body, most=100)
    assert refused.value.status_code == status


def test_another_content_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ApiError, match="multipart/form-data"):
        FormReader("application/json", tmp_path / "file", 100)


@pytest.mark.parametrize(
    ("given_name", "kept"),
    [("../../etc/passwd", "passwd"), ("C:\\x\\y.csv", "y.csv"), ("a\x00\nb", "ab"), ("", "file.jsonl"), ("..", "..")],
)
def test_a_file_name_never_contains_a_path(given_name: str, kept: str) -> None:
    assert plain_name(given_name) == kept
