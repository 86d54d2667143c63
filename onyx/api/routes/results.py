"""What a training leaves: its model and its logs."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import FileResponse, Response, StreamingResponse

from onyx.api.deps import ContextDep, JobDep
from onyx.api.http.errors import cannot, not_found
from onyx.api.http.route import OnyxRoute
from onyx.api.http.scrubbing import scrub
from onyx.api.model_archive import rewritten, tar_stream
from onyx.api.schemas.common import problems
from onyx.api.schemas.training import LogLine, LogPage
from onyx.jobs.job_directory import MODEL, serves
from onyx.settings import Settings

router = APIRouter(route_class=OnyxRoute, tags=["training"])

_BINARY = {"schema": {"type": "string", "format": "binary"}}


@router.get(
    "/training/{training_id}/model",
    response_class=Response,
    responses={
        200: {"content": {"application/x-tar": _BINARY, "application/octet-stream": _BINARY}},
        **problems(400, 404, 422),
    },
)
async def get_model(
    job: JobDep,
    context: ContextDep,
    file: Annotated[str | None, Query(max_length=255, description="One file of it, by its name")] = None,
) -> Response:
    """The published model: the directory as a tar stream, or one file of it."""
    folder = context.settings.job_dir(job.id) / MODEL
    if not serves(job, job.id) or not folder.is_dir():
        raise cannot(f"{job.id} is {job.status}: a model is published when a training has succeeded")
    instead = await asyncio.to_thread(rewritten, folder, job.spec.model)
    if file is None:
        headers = {"Content-Disposition": f'attachment; filename="{job.id}.tar"'}
        return StreamingResponse(tar_stream(folder, job.id, instead), media_type="application/x-tar", headers=headers)
    path = _file_of(folder, file)
    if path is None:
        raise not_found("file", file)
    if path in instead:
        headers = {"Content-Disposition": f'attachment; filename="{path.name}"'}
        return Response(instead[path], media_type="application/octet-stream", headers=headers)
    return FileResponse(path, media_type="application/octet-stream", filename=path.name)


@router.get("/training/{training_id}/logs", responses=problems(404, 422))
async def get_logs(
    job: JobDep,
    context: ContextDep,
    after: Annotated[int, Query(ge=0, le=2**31)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> LogPage:
    """What its processes wrote, in the order of attempts. Paths and tracebacks stay with the operator."""
    return await asyncio.to_thread(page, context.settings, job.id, after, limit)


def _file_of(folder: Path, name: str) -> Path | None:
    """The file with this name. A name is looked up among those that are there, and never becomes a path."""
    return next((path for path in folder.rglob("*") if path.is_file() and str(path.relative_to(folder)) == name), None)


LONGEST_LINE = 2**20
"""A line without end is cut into pieces of so many characters."""

_NUMBER = re.compile(r"[1-9][0-9]{0,17}")
_TRACE = re.compile(r"^(Traceback \(most recent call last\)|  File \"|    |During handling|The above exception)")


def page(settings: Settings, job_id: str, after: int, limit: int) -> LogPage:
    """Lines beyond number `after`."""
    found = list(islice(_lines(settings, job_id), after, after + limit + 1))
    lines = [LogLine(line=after + place, source=source, text=text) for place, (source, text) in enumerate(found, 1)]
    return LogPage(data=lines[:limit], has_more=len(found) > limit)


def _lines(settings: Settings, job_id: str) -> Iterator[tuple[str, str]]:
    attempts = settings.job_dir(job_id) / "attempts"
    # By number: whatever else stands among the attempts is none.
    logs = [log for log in attempts.glob("*/*.log") if _NUMBER.fullmatch(log.parent.name) and log.is_file()]
    for log in sorted(logs, key=lambda path: (int(path.parent.name), path.name)):
        with suppress(FileNotFoundError), log.open(errors="replace") as file:  # a clean-up may have come before
            for line in iter(lambda: file.readline(LONGEST_LINE), ""):
                if not _TRACE.match(line):
                    yield f"attempt {log.parent.name} {log.stem}", scrub(line.rstrip("\n"), settings)
