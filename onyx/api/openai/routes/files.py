"""Files: training data that clients upload, and result files of jobs."""

import asyncio
import errno
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi import Path as InPath
from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse, Response

from onyx import fs
from onyx.api.deps import CallerDep, ContextDep
from onyx.api.http.errors import ApiError
from onyx.api.openai.deps import OpenAIRoute
from onyx.api.openai.errors import invalid, missing
from onyx.api.openai.schemas.files import UPLOAD, FileDeleted, FileObject, FilePage
from onyx.api.openai.uploads import Form, in_place, receive
from onyx.jobs.errors import BadValueError
from onyx.jobs.store.uploads import StoredFile

router = APIRouter(route_class=OpenAIRoute, tags=["files"])

FileId = Annotated[str, InPath(max_length=128)]
_LEAST_SECONDS, _MOST_SECONDS = 3600, 2_592_000
"""Bounds of `expires_after[seconds]`."""

_FORM_BYTES = 2**17
"""The most bytes of an upload besides its file: other fields, headers and boundaries."""

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


async def _file(file_id: FileId, context: ContextDep, caller: CallerDep) -> StoredFile:
    found = await context.store.uploads.get(file_id, caller.sees)
    if found is None:
        raise missing("file", file_id, "file_id")
    return found


FileDep = Annotated[StoredFile, Depends(_file)]


@router.post("/files", openapi_extra=UPLOAD)
async def create_file(request: Request, context: ContextDep, caller: CallerDep) -> FileObject:
    """Upload a file. Its lines are checked when a job is created with it, not now."""
    quota, content_type = context.home.disk_quota, request.headers.get("content-type", "")
    refusal = await quota.refusal(caller.name, _announced_size(request))
    try:
        file_id, form, part = await receive(context.settings, content_type, request.stream(), refusal)
    except ClientDisconnect:
        raise invalid("the client disconnected during the upload", "file", code="invalid_multipart") from None
    except OSError as error:
        raise _disk_full(error) from error
    try:
        filename, seconds = _check(form)
        if (refusal := await quota.refusal(caller.name, form.size)) is not None:
            raise refusal
        with in_place(context.settings, file_id, filename, part) as folder:
            await asyncio.to_thread(fs.sync_directory, folder)
            stored = await context.store.uploads.put(
                file_id,
                caller.name,
                purpose=form.fields["purpose"],
                filename=filename,
                size=form.size,
                expires_after=seconds,
                most_bytes=await quota.bytes_for_files(caller.name),
            )
    finally:
        part.unlink(missing_ok=True)
    request.state.made = stored.id
    return file_object(stored)


@router.get("/files")
async def list_files(
    context: ContextDep,
    caller: CallerDep,
    after: Annotated[str | None, Query(max_length=128)] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Literal["asc", "desc"] = "desc",
    purpose: Annotated[str | None, Query(max_length=32)] = None,
) -> FilePage:
    """Your files, newest first."""
    try:
        files, more = await context.store.uploads.list(
            caller.sees, purpose=purpose, after=after, limit=limit, oldest_first=order == "asc"
        )
    except BadValueError as error:
        raise invalid(str(error), "after") from None
    data = [file_object(file) for file in files]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return FilePage(data=data, first_id=first, last_id=last, has_more=more)


@router.get("/files/{file_id}")
async def get_file(file: FileDep) -> FileObject:
    """One file."""
    return file_object(file)


@router.delete("/files/{file_id}")
async def delete_file(file: FileDep, context: ContextDep, caller: CallerDep) -> FileDeleted:
    """Delete a file. Jobs that are already prepared do not need it any more."""
    deleted = await context.store.uploads.delete(file.id, caller.sees)
    file.path(context.settings.home).unlink(missing_ok=True)
    return FileDeleted(id=file.id, deleted=deleted)


@router.get(
    "/files/{file_id}/content",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}},
)
async def get_content(file: FileDep, context: ContextDep) -> Response:
    """The content of a file."""
    path = file.path(context.settings.home)
    if not path.is_file():
        raise missing("file", file.id, "file_id")
    return FileResponse(path, media_type="application/octet-stream", filename=file.filename)


def file_object(file: StoredFile) -> FileObject:
    return FileObject(
        id=file.id,
        bytes=file.bytes,
        created_at=int(file.created_at),
        expires_at=None if file.expires_at is None else int(file.expires_at),
        filename=file.filename,
        purpose=file.purpose,
    )


def _announced_size(request: Request) -> int:
    """The least size of the file by the request's Content-Length; 0 without that header."""
    length = request.headers.get("content-length", "")
    return max(0, int(length[:20]) - _FORM_BYTES) if length.isascii() and length.isdigit() else 0


def _check(form: Form) -> tuple[str, float | None]:
    """The file's name, and the seconds until it expires; 400 if the form is wrong."""
    if form.filename is None:
        raise invalid("the request has no file: send it as the part named file", "file")
    purpose = form.fields.get("purpose")
    if purpose != "fine-tune":
        raise invalid(
            f"purpose must be fine-tune, which is all this service does, not {str(purpose)[:80]!r}", "purpose"
        )
    if form.size == 0:
        raise invalid("the file is empty", "file", code="empty_file")
    return form.filename, _lifetime(form.fields)


def _lifetime(fields: dict[str, str]) -> float | None:
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise invalid("the anchor must be created_at", "expires_after.anchor")
    if seconds is None or not (seconds.isascii() and seconds.isdigit() and len(seconds) < 9):
        raise invalid(
            f"seconds must be a whole number from {_LEAST_SECONDS} to {_MOST_SECONDS}", "expires_after.seconds"
        )
    if not _LEAST_SECONDS <= int(seconds) <= _MOST_SECONDS:
        raise invalid(
            f"seconds must be from {_LEAST_SECONDS} to {_MOST_SECONDS}, not {seconds}", "expires_after.seconds"
        )
    return float(seconds)


def _disk_full(error: OSError) -> ApiError:
    """507 if the error says that the disk is full; any other error is raised again."""
    if error.errno not in _DISK_FULL:
        raise error
    message = "the service's disk is full: delete files, or ask its operator"
    return ApiError(507, message, code="disk_full", param="file")
