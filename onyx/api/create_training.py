"""A training that was asked for, and perhaps waited for: until it ends, or nobody is there to hear of it."""

import time
from dataclasses import dataclass
from typing import Annotated

from fastapi import Header, Query, Request, Response, status

from onyx.api.app_context import AppContext
from onyx.api.deps import CallerDep, ContextDep
from onyx.api.http.caller import unknown
from onyx.api.http.scrubbing import scrub_error
from onyx.api.schemas.training import TrainingAnswer, TrainingBody
from onyx.api.training_request import spec_of
from onyx.jobs.ids import JobKind
from onyx.jobs.models import Job
from onyx.jobs.presenters import training_answer

HISTORY = 200
"""Updates of which numbers are shown. All of them are in metrics.csv, beside the model."""


async def answer_of(job: Job, context: AppContext, *, metrics: bool = False) -> TrainingAnswer:
    """The training answer; lists leave out the numbers of each update."""
    numbers = await context.store.events.last_metrics(job.id, HISTORY) if metrics else ()
    shown = scrub_error(job, context.settings)
    return TrainingAnswer.model_validate(training_answer(shown, numbers, await context.gpus(), context.settings))


LOOK_SECONDS = 1.0
"""Between two looks at whether a client that waits is still there, and its key still works."""

Wait = Annotated[
    float | None, Query(ge=0, le=3600, description="Answer 200 when the training ends within so many seconds")
]
IdempotencyKey = Annotated[
    str | None, Header(max_length=255, description="The same key and body give the same training, however often")
]


@dataclass
class NewTraining:
    """What a request that makes a training says, whichever route it takes."""

    request: Request
    response: Response
    body: TrainingBody
    context: ContextDep
    caller: CallerDep
    wait: Wait = None
    idempotency_key: IdempotencyKey = None

    async def create(self, kind: JobKind) -> TrainingAnswer:
        """Make it; 200 when it ended while it was waited for, 401 when the key was revoked meanwhile."""
        spec = await spec_of(self.body, self.context, self.caller)
        owner = self.caller.owner(self.body.user_id)
        job = await self.context.home.submit(spec, owner, kind, idempotency_key=self.idempotency_key)
        self.request.state.made = job.id
        if self.wait is not None:
            with self.context.streams.one(self.caller.counted_as):
                job = await self._ended(job, self.wait)
            if job.status.terminal:
                self.response.status_code = status.HTTP_200_OK
        return await answer_of(job, self.context, metrics=True)

    async def _ended(self, job: Job, seconds: float) -> Job:
        """The job when it has ended, or the time is over, or nobody is there any more to hear of it."""
        until = time.monotonic() + seconds
        while not job.status.terminal and (left := until - time.monotonic()) > 0:
            if self.context.leaving.is_set() or await self.request.is_disconnected():
                break
            job = await self.context.wait(job.id, min(left, LOOK_SECONDS))
            if not await self.context.still_admits(self.caller):
                raise unknown(f"the API key was revoked: {job.id} was made, and goes on")
        return job
