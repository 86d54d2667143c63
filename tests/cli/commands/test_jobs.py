"""A job from submit to delete on the command line, against a real service."""

import json
from pathlib import Path

from tests.acceptance.onyx_serve import OnyxServe
from tests.cli.conftest import Onyx


def write_samples(folder: Path, count: int = 16) -> Path:
    path = folder / "samples.jsonl"
    path.write_text("".join(json.dumps({"text": f"the square of {n} is {n * n}"}) + "\n" for n in range(count)))
    return path


def test_submit_watch_show_logs_download_delete(remote: Onyx, tmp_path: Path) -> None:
    samples = write_samples(tmp_path)
    options = ("--model", "onyx/tiny", "--epochs", "2", "--window", "8", "--lora-r", "4", "--evaluation", "0.25")
    ran = remote("jobs", "submit", str(samples), *options, "--watch")
    assert ran.status == 0, ran.err
    lines = ran.out.splitlines()
    job_id = lines[0]
    assert any("training begins" in line for line in lines)
    assert "succeeded" in lines[-1]

    shown = remote("jobs", "show", job_id)
    assert "succeeded" in shown.out
    assert "onyx/tiny (lora, float32)" in shown.out
    answer = remote("jobs", "show", job_id, "--json").json
    assert answer["training_id"] == job_id
    assert answer["effective_batch_size"] == 8

    listed = remote("jobs", "list", "--status", "succeeded")
    assert job_id in listed.out
    assert "100 %" in listed.out
    assert job_id in [job["training_id"] for job in remote("jobs", "list", "--json").json["data"]]
    assert job_id in remote("models", "list").out
    assert all({"source", "text"} <= set(line) for line in remote("jobs", "logs", job_id, "--json").json)

    fetched = remote("jobs", "download", job_id, "--to", "mine", "--json").json
    assert "adapter_model.safetensors" in fetched["files"]
    assert (tmp_path / "mine" / "adapter_config.json").is_file()
    assert remote("jobs", "download", job_id, "--to", "mine").status == 2
    assert [path.name for path in tmp_path.glob(".*part")] == []

    watched = remote("jobs", "watch", job_id, "--json")
    objects = [json.loads(line) for line in watched.out.splitlines()]
    assert objects[-1]["status"] == "succeeded"
    assert [each["seq"] for each in objects[:-1]] == sorted(each["seq"] for each in objects[:-1])

    assert remote("jobs", "delete", job_id).status == 0
    gone = remote("jobs", "show", job_id)
    assert gone.status == 1
    assert gone.out == ""
    assert job_id in gone.err


def test_pause_resume_cancel(remote: Onyx, service: OnyxServe, tmp_path: Path) -> None:
    samples = write_samples(tmp_path)
    made = remote("jobs", "submit", str(samples), "-m", "onyx/tiny", "--epochs", "500", "--window", "2", "--json").json
    job_id = made["training_id"]
    service.until(job_id, lambda job: job["status"] == "running")
    assert remote("jobs", "pause", job_id).status == 0
    service.until(job_id, lambda job: job["status"] == "paused")
    assert remote("jobs", "resume", job_id).status == 0
    assert remote("jobs", "cancel", job_id, "--json").json["training_id"] == job_id
    watched = remote("jobs", "watch", job_id)
    assert watched.status == 1
    assert "cancelled" in watched.err
    refused = remote("jobs", "resume", job_id)
    assert refused.status == 1
    assert "cancelled" in refused.err


def test_watching_a_job_that_fails_prints_the_reason(remote: Onyx, tmp_path: Path) -> None:
    ran = remote("jobs", "submit", str(write_samples(tmp_path)), "-m", "no such model", "--watch")
    assert ran.status == 1
    assert "no such model" in ran.err


def test_the_services_error_message_is_shown(remote: Onyx, tmp_path: Path) -> None:
    refused = remote("jobs", "submit", str(write_samples(tmp_path)), "-m", "onyx/tiny", "--epochs", "0")
    assert refused.status == 1
    assert "epochs" in refused.err
    assert "data root" in remote("jobs", "submit", "--data-path", "x.jsonl", "-m", "onyx/tiny").err
