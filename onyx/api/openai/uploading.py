"""An upload on its way to its place: nobody sees it before it is whole, and half of one is not kept."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

from onyx import fs
from onyx.api.openai.parts import Form, FormReader
from onyx.jobs.ids import make_file_id
from onyx.jobs.uploads import suffix_of, upload_path
from onyx.settings import Settings

STALE_SECONDS = 3600.0
"""An upload that has not grown for so long was cut off with the process that received it."""


async def receive(
    settings: Settings, content_type: str, stream: AsyncIterator[bytes], refusal: Exception | None = None
) -> tuple[str, Form, Path]:
    """A new file's id, what was said of it, and its bytes: still under the name that nobody looks for.

    A `refusal` is raised when all has been read, and nothing was written: a client that still sends hears no answer.
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
    """Put the bytes where the store says they are; if the store will not say so, they go. Gives the directory."""
    path = upload_path(settings.home, file_id, suffix_of(filename))
    try:
        fs.move_into_place(part, path, durable=False)  # its bytes are on the disk; the caller waits for its name
        yield path.parent
    except BaseException:
        path.unlink(missing_ok=True)
        raise
