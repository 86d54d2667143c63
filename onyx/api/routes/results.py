"""Results of a training: its model and its logs."""

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
from onyx.api.http.errors import not_allowed, not_found
from onyx.api.http.scrubbing import scrub
from onyx.api.model_archive import rewritten_files, tar_stream
from onyx.api.onyx_route import OnyxRoute
from onyx.api.schemas.common import problems
from onyx.api.schemas.training import LogLine, LogPage
from onyx.jobs.job_directory import MODEL, serves
from onyx.settings import Settings

router = APIRouter(route_class=OnyxRoute, tags=["training"])

_BINARY = {"schema": {"type": "string", "format": "binary"}}

LONGEST_LINE = 2**20
"""A longer line is cut into pieces of this many characters."""

_ATTEMPT = re.compile(r"[1-9][0-9]{0,17}")
_TRACEBACK = re.compile(r"^(Traceback \(most recent call last\)|  File \"|    |During handling|The above exception)")


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
    file: Annotated[str | None, Query(max_length=255, description="One file of the model, by its name")] = None,
) -> Response:
    """The published model, as a tar stream of its directory or as one file of it."""
    folder = context.settings.job_dir(job.id) / MODEL
    if not serves(job, job.id) or not folder.is_dir():
        raise not_allowed(f"{job.id} is {job.status}: a model is published when a training has succeeded")
    replaced = await asyncio.to_thread(rewritten_files, folder, job.spec.model)
    if file is None:
        headers = {"Content-Disposition": f'attachment; filename="{job.id}.tar"'}
        return StreamingResponse(tar_stream(folder, job.id, replaced), media_type="application/x-tar", headers=headers)
    path = _file_of(folder, file)
    if path is None:
        raise not_found("file", file)
    if path in replaced:
        headers = {"Content-Disposition": f'attachment; filename="{path.name}"'}
        return Response(replaced[path], media_type="application/octet-stream", headers=headers)
    return FileResponse(path, media_type="application/octet-stream", filename=path.name)


@router.get("/training/{training_id}/logs", responses=problems(404, 422))
async def get_logs(
    job: JobDep,
    context: ContextDep,
    after: Annotated[int, Query(ge=0, le=2**31)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> LogPage:
    """What the job's processes wrote, in the order of attempts, without paths of the host and tracebacks."""
    return await asyncio.to_thread(page, context.settings, job.id, after, limit)


def _file_of(folder: Path, name: str) -> Path | None:
    """The file with this name, found by comparing: the name never becomes a path, so it cannot lead elsewhere."""
    return next((path for path in folder.rglob("*") if path.is_file() and str(path.relative_to(folder)) == name), None)


def page(settings: Settings, job_id: str, after: int, limit: int) -> LogPage:
    """The lines after number `after`."""
    found = list(islice(_lines(settings, job_id), after, after + limit + 1))
    lines = [LogLine(line=after + number, source=source, text=text) for number, (source, text) in enumerate(found, 1)]
    return LogPage(data=lines[:limit], has_more=len(found) > limit)


def _lines(settings: Settings, job_id: str) -> Iterator[tuple[str, str]]:
    attempts = settings.job_dir(job_id) / "attempts"
    # Only directories with an attempt's number: there may be others.
    logs = [log for log in attempts.glob("*/*.log") if _ATTEMPT.fullmatch(log.parent.name) and log.is_file()]
    for log in sorted(logs, key=lambda path: (int(path.parent.name), path.name)):
        with suppress(FileNotFoundError), log.open(errors="replace") as file:  # a clean-up may delete it meanwhile
            for line in iter(lambda: file.readline(LONGEST_LINE), ""):
                if not _TRACEBACK.match(line):
                    yield f"attempt {log.parent.name} {log.stem}", scrub(line.rstrip("\n"), settings)
