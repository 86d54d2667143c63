"""The result file of a finished job: a CSV with a line per update, in the columns of OpenAI's fine-tuning results."""

import asyncio
import csv
import io
import logging
from typing import Any

from onyx import fs
from onyx.jobs.errors import StoreError
from onyx.jobs.ids import result_file_id
from onyx.jobs.models import Job
from onyx.jobs.store.store import Store
from onyx.jobs.store.uploads import upload_path
from onyx.settings import Settings
from onyx.training.contract.attempt import Result
from onyx.training.contract.metrics_csv import read_rows

logger = logging.getLogger(__name__)

PURPOSE = "fine-tune-results"
COLUMNS = ("step", "train_loss", "train_accuracy", "valid_loss", "valid_mean_token_accuracy")


async def write_result_file(store: Store, settings: Settings, job: Job, result: Result) -> None:
    """Write the file and register it as an upload of the job's owner, once. A failure does not fail the job."""
    file_id = result_file_id(job.id)
    try:
        if file_id in await store.uploads.existing([file_id]):
            return
        text = await asyncio.to_thread(_text, settings, job.id, result)
        path = upload_path(settings.home, file_id, ".csv")
        path.parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(fs.write_text, path, text)
        name = f"{job.id}-results.csv"
        await store.uploads.put(file_id, job.owner, purpose=PURPOSE, filename=name, size=path.stat().st_size)
    except (OSError, StoreError) as error:
        logger.warning("no result file for %s: %s", job.id, error, extra={"action": "no_result_file"})


def _text(settings: Settings, job_id: str, result: Result) -> str:
    return table(read_rows(settings.job_dir(job_id) / "metrics.csv"), result.epochs)


def table(rows: list[dict[str, str]], epochs: list[dict[str, Any]]) -> str:
    """The CSV. Accuracy is that of label tokens, or of pairs in a job on preference pairs."""
    scores = {entry["update"]: entry for entry in epochs if "evaluation_loss" in entry}
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        score = scores.get(int(row["update"]), {})
        accuracy = row.get("token_accuracy") or row.get("preference_accuracy")
        writer.writerow(
            (row["update"], row["loss"], accuracy, score.get("evaluation_loss"), score.get("evaluation_accuracy"))
        )
    return text.getvalue()
