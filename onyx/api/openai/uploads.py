"""Parses a multipart upload while it arrives, and writes its file to disk in blocks, so that memory stays bounded."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import BinaryIO

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from onyx import fs
from onyx.api.http.bounded_body import too_large
from onyx.api.openai.errors import invalid
from onyx.jobs.ids import make_file_id
from onyx.jobs.store.uploads import suffix_of, upload_path
from onyx.settings import Settings

MOST_FIELD_BYTES = 4096
MOST_PARTS = 16
BLOCK = 1 << 20
"""Bytes to collect before each write."""


@dataclass
class Form:
    """A parsed upload: its small fields, and its one file's name and size."""

    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None
    """The client's name for the file; None when the form has no file."""

    size: int = 0


class FormReader:
    """Parses one body. The file's bytes are counted and, with `keep`, written to `path`."""

    def __init__(self, content_type: str, path: Path, most_bytes: int, *, keep: bool = True) -> None:
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise invalid("send the file as multipart/form-data, with the fields file and purpose", "file")
        self.form = Form()
        self._path = path
        self._most = most_bytes
        self._keep = keep
        self._file: BinaryIO | None = None
        self._block = bytearray()
        self._header, self._value = bytearray(), bytearray()
        self._name = ""
        self._text = bytearray()
        self._parts = 0
        self._in_file = self._complete = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": lambda data, start, end: self._header.extend(data[start:end]),
                "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": self._part_data,
                "on_part_end": self._end_part,
                "on_end": self._end_form,
            },
        )

    async def read(self, stream: AsyncIterator[bytes]) -> Form:
        """Read the form. A file that is too large is read to its end, because the client sees no answer before."""
        total = 0
        with self._path.open("xb") as self._file:
            try:
                async for chunk in stream:
                    total += len(chunk)
                    if total > 2 * self._most + BLOCK:
                        raise too_large(self._most)
                    self._parser.write(chunk)
                    if len(self._block) >= BLOCK:
                        await self._write()
            except FormParserError as error:
                raise invalid(f"the multipart body cannot be read: {error}", "file", code="invalid_multipart") from None
            if self.form.size > self._most:
                raise too_large(self._most)
            if not self._complete:
                raise invalid("the multipart body ends too early: send it again", "file", code="invalid_multipart")
            await self._write()
            await asyncio.to_thread(fs.sync_file, self._file)
        return self.form

    async def _write(self) -> None:
        block, self._block = bytes(self._block), bytearray()
        if self._file is not None and self._keep and self.form.size <= self._most:
            await asyncio.to_thread(self._file.write, block)

    def _begin_part(self) -> None:
        self._header, self._value, self._text = bytearray(), bytearray(), bytearray()
        self._name, self._in_file = "", False
        self._parts += 1

    def _end_header(self) -> None:
        if bytes(self._header).lower() == b"content-disposition":
            _, options = parse_options_header(bytes(self._value))
            self._name = options.get(b"name", b"").decode("utf-8", "replace")
            self._in_file = self._name == "file"
            if self._in_file:
                self._begin_file(options.get(b"filename", b"").decode("utf-8", "replace"))
        self._header, self._value = bytearray(), bytearray()

    def _begin_file(self, name: str) -> None:
        if self.form.filename is not None:
            raise invalid("send one file at a time", "file")
        self.form.filename = plain_name(name)

    def _end_headers(self) -> None:
        if not self._name or self._parts > MOST_PARTS:
            message = f"each part needs a name, and a form has at most {MOST_PARTS} parts"
            raise invalid(message, "file", code="invalid_multipart")

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._in_file:
            self.form.size += end - start
            self._block += data[start:end]
        else:
            self._text += data[start:end]
            if len(self._text) > MOST_FIELD_BYTES:
                raise invalid(f"the field is longer than {MOST_FIELD_BYTES} bytes", self._name[:80])

    def _end_part(self) -> None:
        if not self._in_file:
            self.form.fields[self._name] = self._text.decode("utf-8", "replace")

    def _end_form(self) -> None:
        self._complete = True


def plain_name(name: str) -> str:
    """The last part of a file name, without unprintable characters."""
    last = PurePosixPath(PureWindowsPath(name).name).name
    return "".join(letter for letter in last if letter.isprintable())[-255:] or "file.jsonl"


STALE_SECONDS = 3600.0
"""A temporary file that has not grown for this long belongs to a process that was killed: it is removed."""


async def receive(
    settings: Settings, content_type: str, stream: AsyncIterator[bytes], refusal: Exception | None = None
) -> tuple[str, Form, Path]:
    """Receive an upload: its new id, its form, and the temporary file with its bytes.

    A `refusal` that is known beforehand is raised after the whole body has been read, and nothing is written: a client
    that is still sending does not read the answer.
    """
    folder = settings.home / "uploads"
    folder.mkdir(parents=True, exist_ok=True)
    await asyncio.to_thread(fs.sweep, folder, older_than=STALE_SECONDS)
    file_id = make_file_id()
    part = folder / f".{file_id}.part"
    try:
        form = await FormReader(content_type, part, settings.upload_bytes, keep=refusal is None).read(stream)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    if refusal is not None:
        part.unlink()
        raise refusal
    return file_id, form, part


@contextmanager
def in_place(settings: Settings, file_id: str, filename: str, part: Path) -> Iterator[Path]:
    """Move the temporary file to its place, and yield its directory. If the block fails, the file is removed."""
    path = upload_path(settings.home, file_id, suffix_of(filename))
    try:
        fs.move_into_place(part, path, durable=False)  # the bytes are synced; the caller syncs the name
        yield path.parent
    except BaseException:
        path.unlink(missing_ok=True)
        raise
