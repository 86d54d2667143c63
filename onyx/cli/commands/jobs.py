"""`onyx jobs`: what was asked of a service, and how it stands."""

from typing import Annotated, Any

import typer

from onyx.cli.client import Service
from onyx.cli.job_summary import percent, standing
from onyx.cli.output import DEFAULT_URL, JobId, Json, Key, Url, emit, number, say, table

app = typer.Typer(help="Fine-tuning jobs, here or on another host.", no_args_is_help=True)


@app.command("list")
def list_jobs(
    status: Annotated[list[str] | None, typer.Option(help="Only those of this status; may be repeated.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="At most so many, newest first.")] = 20,
    after: Annotated[str | None, typer.Option(help="Those older than this job.")] = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Your jobs, newest first."""
    asked = {"limit": limit, "status": status or None, "after": after}
    page = Service(url, key).get("/training", **{name: value for name, value in asked.items() if value is not None})
    if as_json:
        emit(page)
        return
    table(("id", "status", "model", "done", "loss"), [_row(job) for job in page["data"]])
    if page["has_more"]:
        say(f"older ones: onyx jobs list --after {page['data'][-1]['training_id']}")


@app.command()
def show(job_id: JobId, url: Url = DEFAULT_URL, key: Key = None, as_json: Json = False) -> None:
    """How a job stands."""
    _tell(Service(url, key).get(f"/training/{job_id}"), as_json)


@app.command()
def cancel(job_id: JobId, url: Url = DEFAULT_URL, key: Key = None, as_json: Json = False) -> None:
    """End a job. What it has learnt so far is not published."""
    _tell(Service(url, key).post(f"/training/{job_id}/cancel"), as_json)


@app.command()
def pause(job_id: JobId, url: Url = DEFAULT_URL, key: Key = None, as_json: Json = False) -> None:
    """Have a job save and give up its devices until it is resumed."""
    _tell(Service(url, key).post(f"/training/{job_id}/pause"), as_json)


@app.command()
def resume(job_id: JobId, url: Url = DEFAULT_URL, key: Key = None, as_json: Json = False) -> None:
    """Let a paused job go on; it ends with the same bits."""
    _tell(Service(url, key).post(f"/training/{job_id}/resume"), as_json)


@app.command()
def delete(job_id: JobId, url: Url = DEFAULT_URL, key: Key = None, as_json: Json = False) -> None:
    """Remove a finished job with its data and its model."""
    answer = Service(url, key).delete(f"/training/{job_id}")
    if as_json:
        emit(answer)
    else:
        say(answer["message"])


@app.command()
def logs(job_id: JobId, url: Url = DEFAULT_URL, key: Key = None, as_json: Json = False) -> None:
    """What a job's processes wrote."""
    service = Service(url, key)
    lines: list[dict[str, Any]] = []
    more = True
    while more:
        page = service.get(f"/training/{job_id}/logs", after=len(lines), limit=1000)
        lines += page["data"]
        more = page["has_more"]
    if as_json:
        emit(lines)
        return
    for line in lines:
        say(f"{line['source']}: {line['text']}")


def _tell(job: dict[str, Any], as_json: bool) -> None:
    if as_json:
        emit(job)
        return
    for name, value in standing(job):
        say(f"{name:<12} {value}")


def _row(job: dict[str, Any]) -> tuple[str, ...]:
    done = percent(job)
    loss = job["best_loss"] if job["best_loss"] is not None else (job["progress"] or {}).get("loss")
    model = (job["plan"] or {}).get("model", "–")
    return job["training_id"], job["status"], model, "–" if done is None else f"{done:.0f} %", number(loss)
