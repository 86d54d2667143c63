"""A job as an answer."""

from onyx.api.desk import Desk
from onyx.api.schemas.training import TrainingAnswer
from onyx.api.scrubbing import scrub_error
from onyx.jobs.answering import training_answer
from onyx.jobs.values import Job

HISTORY = 200
"""Updates of which numbers are shown. All of them are in metrics.csv, beside the model."""


async def answer_of(job: Job, desk: Desk, *, metrics: bool = False) -> TrainingAnswer:
    """The training answer; lists leave out the numbers of each update."""
    numbers = await desk.store.last_metrics(job.id, HISTORY) if metrics else ()
    shown = scrub_error(job, desk.settings)
    return TrainingAnswer.model_validate(training_answer(shown, numbers, await desk.gpus(), desk.settings))
