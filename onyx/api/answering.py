"""A job as an answer."""

from onyx.api.desk import Desk
from onyx.api.logs import scrub
from onyx.api.schemas.training import TrainingAnswer
from onyx.jobs.answering import training_answer
from onyx.jobs.values import Job

HISTORY = 200
"""Updates of which numbers are shown. All of them are in metrics.csv, beside the model."""


async def answer_of(job: Job, desk: Desk, *, metrics: bool = False) -> TrainingAnswer:
    """The training answer; lists leave out the numbers of each update."""
    numbers = await desk.store.last_metrics(job.id, HISTORY) if metrics else ()
    answer = training_answer(job, numbers, await desk.gpus(), desk.settings)
    if answer["error"]:
        answer["error"] = scrub(answer["error"], desk.settings)
    return TrainingAnswer.model_validate(answer)
