"""The files of an attempt of a tracked job, as its runner and ranks write them."""

from pathlib import Path
from typing import Any

from onyx.jobs.files import write_json
from onyx.training.contract.attempt import Attempt, Share, attempt_dir, attempt_file
from onyx.training.contract.spec import DataSpec, JobSpec, WandbSpec
from onyx.training.state.events import Events

SECRET_TEXT = "what the samples say"  # noqa: S105 - not a password


def tracked_attempt(job_dir: Path, number: int = 1, **wandb: Any) -> Attempt:
    """An attempt with its file written, and no event yet."""
    spec = JobSpec(
        model="onyx/tiny", data=DataSpec(texts=[SECRET_TEXT]), wandb=WandbSpec(**({"project": "harbour"} | wandb))
    )
    folder = attempt_dir(job_dir, number)
    attempt = Attempt(
        job_id=job_dir.name,
        number=number,
        spec=spec,
        plan={},
        shares=[Share(device="cpu:0", share=1.0, token_budget=64)],
        precision="float32",
        model_dir=job_dir / "base",
        data_dir=job_dir / "data",
        job_dir=job_dir,
        attempt_dir=folder,
        rendezvous=folder / "rendezvous",
    )
    write_json(attempt_file(attempt), attempt)
    return attempt


def say_updates(attempt: Attempt, updates: range) -> None:
    """Write the events of ranks that make these updates and evaluate after the last one."""
    events = Events(attempt.attempt_dir / "events.jsonl")
    for update in updates:
        events.metrics(f"update {update}", {"update": update, "loss": 1 / update, "learning_rate": 0.1}, last=True)
    events.emit("checkpoint", "saved", {"update": updates[-1]})
    events.emit("evaluation", "epoch 1", {"update": updates[-1], "evaluation_loss": 0.5, "evaluation_accuracy": None})
    events.close()
