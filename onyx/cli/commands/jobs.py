"""`onyx jobs`: list, show, pause, resume, cancel and delete jobs, and read their logs, over HTTP."""

from typing import Annotated, Any

import typer

from onyx.cli.client import ServiceClient
from onyx.cli.job_summary import percent, summary_rows
from onyx.cli.output import DEFAULT_URL, JobId, Json, Key, Url, number, print_json, print_line, print_table

app = typer.Typer(help="Fine-tuning jobs of a service.", no_args_is_help=True)


@app.command("list")
def list_jobs(
    status: Annotated[list[str] | None, typer.Option(help="Only jobs with this status; may be repeated.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many to show at most.")] = 20,
    after: Annotated[str | None, typer.Option(help="Only jobs older than this one.")] = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Your jobs, newest first."""
    query = {"limit": limit, "status": status or None, "after": after}
    page = ServiceClient(url, key).get(
        "/training", **{name: value for name, value in query.items() if value is not None}
    )
    if as_json:
        print_json(page)
        return
    print_table(("id", "status", "model", "done", "loss"), [_row(job) for job in page["data"]])
    if page["has_more"]:
        print_line(f"older jobs: onyx jobs list --after {page['data'][-1]['training_id']}")


@app.command()
def show(job_id: JobId, url: Url = DEFAULT_URL, key: Key = None, as_json: Json = False) -> None:
    """Show the state of a job."""
    _print_result(ServiceClient(url, key).get(f"/training/{job_id}"), as_json)


@app.command()
def cancel(job_id: JobId, url: Url = DEFAULT_URL, key: Key = None, as_json: Json = False) -> None:
    """Cancel a job. No model is published."""
    _print_result(ServiceClient(url, key).post(f"/training/{job_id}/cancel"), as_json)


@app.command()
def pause(job_id: JobId, url: Url = DEFAULT_URL, key: Key = None, as_json: Json = False) -> None:
    """Pause a job: it saves a checkpoint and gives up its devices until it is resumed."""
    _print_result(ServiceClient(url, key).post(f"/training/{job_id}/pause"), as_json)


@app.command()
def resume(job_id: JobId, url: Url = DEFAULT_URL, key: Key = None, as_json: Json = False) -> None:
    """Resume a paused job. Its result is the same, to the bit, as without the pause."""
    _print_result(ServiceClient(url, key).post(f"/training/{job_id}/resume"), as_json)


@app.command()
def delete(job_id: JobId, url: Url = DEFAULT_URL, key: Key = None, as_json: Json = False) -> None:
    """Delete a finished job with its data and its model."""
    answer = ServiceClient(url, key).delete(f"/training/{job_id}")
    if as_json:
        print_json(answer)
    else:
        print_line(answer["message"])


@app.command()
def logs(job_id: JobId, url: Url = DEFAULT_URL, key: Key = None, as_json: Json = False) -> None:
    """Show the log lines of a job's processes."""
    service = ServiceClient(url, key)
    lines: list[dict[str, Any]] = []
    more = True
    while more:
        page = service.get(f"/training/{job_id}/logs", after=len(lines), limit=1000)
        lines += page["data"]
        more = page["has_more"]
    if as_json:
        print_json(lines)
        return
    for line in lines:
        print_line(f"{line['source']}: {line['text']}")


def _print_result(job: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(job)
        return
    for name, value in summary_rows(job):
        print_line(f"{name:<12} {value}")


def _row(job: dict[str, Any]) -> tuple[str, ...]:
    done = percent(job)
    loss = job["best_loss"] if job["best_loss"] is not None else (job["progress"] or {}).get("loss")
    model = (job["plan"] or {}).get("model", "–")
    return job["training_id"], job["status"], model, "–" if done is None else f"{done:.0f} %", number(loss)
