"""POST a training: make the job, wait for its end if the client asks for that, and answer."""

import time
from dataclasses import dataclass
from typing import Annotated

from fastapi import Header, Query, Request, Response, status

from onyx.api.app_context import AppContext
from onyx.api.deps import CallerDep, ContextDep
from onyx.api.http.caller import unauthorized
from onyx.api.http.scrubbing import scrub_error
from onyx.api.schemas.training import TrainingAnswer, TrainingBody
from onyx.api.training_request import spec_of
from onyx.jobs.ids import JobKind
from onyx.jobs.models import Job
from onyx.jobs.presenters import training_answer

HISTORY = 200
"""How many updates an answer shows, the last ones. `metrics.csv` beside the model has all."""

CHECK_SECONDS = 1.0
"""Time between two checks that a waiting client is still connected and its key still works."""

Wait = Annotated[
    float | None, Query(ge=0, le=3600, description="Wait this many seconds for the end; 200 if it ends in time")
]
IdempotencyKey = Annotated[
    str | None, Header(max_length=255, description="A repeated request with the same key and body makes no second job")
]


@dataclass
class NewTraining:
    """A request that makes a training, with what FastAPI reads from it. Both POST routes share this."""

    request: Request
    response: Response
    body: TrainingBody
    context: ContextDep
    caller: CallerDep
    wait: Wait = None
    idempotency_key: IdempotencyKey = None

    async def create(self, kind: JobKind) -> TrainingAnswer:
        """Make the job. 200 if it ended while the client waited, 401 if the key was revoked meanwhile."""
        spec = await spec_of(self.body, self.context, self.caller)
        owner = self.caller.owner(self.body.user_id)
        job = await self.context.home.submit(spec, owner, kind, idempotency_key=self.idempotency_key)
        self.request.state.made = job.id  # for the audit log
        if self.wait is not None:
            with self.context.streams.slot(self.caller.limit_key):
                job = await self._wait_for(job, self.wait)
            if job.status.terminal:
                self.response.status_code = status.HTTP_200_OK
        return await answer_of(job, self.context, metrics=True)

    async def _wait_for(self, job: Job, seconds: float) -> Job:
        """The job once it has ended, or as it is when time is up, the client is gone or the service stops."""
        until = time.monotonic() + seconds
        while not job.status.terminal and (left := until - time.monotonic()) > 0:
            if self.context.stopping.is_set() or await self.request.is_disconnected():
                break
            job = await self.context.wait(job.id, min(left, CHECK_SECONDS))
            if not await self.context.still_admits(self.caller):
                raise unauthorized(f"the API key was revoked: {job.id} was made and goes on")
        return job


async def answer_of(job: Job, context: AppContext, *, metrics: bool = False) -> TrainingAnswer:
    """A job as an answer; with `metrics`, also the numbers of its last updates (lists leave them out)."""
    updates = await context.store.events.last_metrics(job.id, HISTORY) if metrics else ()
    shown = scrub_error(job, context.settings)
    return TrainingAnswer.model_validate(training_answer(shown, updates, await context.gpus(), context.settings))
