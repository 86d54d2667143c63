"""The demo from start to end. It imports no torch: models run in processes of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from onyx import fs
from onyx.cli.client import ServiceClient
from onyx.cli.commands.download import download_model
from onyx.cli.commands.watch import PlainView, bar_view, observe
from onyx.cli.output import CommandError, duration
from onyx.demo.lesson import PROBES, Lesson, choose, rows
from onyx.demo.service import demo_home, running

console = Console()

MARKER = "made-by-onyx-demo"
"""A file beside the downloaded model. The demo deletes no directory that does not contain it."""


def main() -> int:
    """Run the demo; the exit status is 0 when it succeeded."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    start = time.monotonic()
    try:
        run_demo(choose(), demo_home())
    except CommandError as error:
        console.print(f"The demo failed: {error}", style="red", markup=False)
        return error.status
    except KeyboardInterrupt:
        console.print("Stopped. All processes of the demo have ended.")
        return 130
    console.print(f"The demo took {duration(time.monotonic() - start)}. Now serve your own: make run", markup=False)
    return 0


def run_demo(lesson: Lesson, home: Path) -> None:
    """Start the service, ask the model, fine-tune it over HTTP, download the result and ask that."""
    result = home / "result"
    remove_result(result)
    console.rule("Onyx: it fits, it is exact, it is not lost")
    with running(home) as service:
        console.print(f"The service runs, with its files in {home}", markup=False, highlight=False)
        console.print(f"Asking {lesson.model} about Onyx Harbour, a company that does not exist …", markup=False)
        before = answers(home, lesson.model, lesson.answer_tokens)
        job = train(service, lesson)
        model = download_result(service, job["training_id"], result)
        console.print(f"The model was downloaded to {model}; asking it the same …", markup=False, highlight=False)
        after = answers(home, str(model), lesson.answer_tokens)
    compare(before, after)


def remove_result(folder: Path) -> None:
    """Remove the model of an earlier demo; a CommandError when the demo did not make `folder`."""
    if not folder.exists():
        return
    if not (folder / MARKER).is_file():
        raise CommandError(f"{folder} was not made by the demo: move it away, or delete it yourself")
    fs.remove(folder)


def download_result(service: ServiceClient, job_id: str, folder: Path) -> Path:
    """Download the model into `folder`, which appears together with its marker, and return the model's directory."""
    with fs.publish_directory(folder, durable=False, replace=False) as part:
        download_model(service, job_id, part / "model")
        (part / MARKER).touch()
    return folder / "model"


def train(service: ServiceClient, lesson: Lesson) -> dict[str, Any]:
    """Create a fine-tuning job over HTTP, follow it until it has ended, and return it."""
    samples = rows()
    job = service.post(
        "/training/with-accumulation",
        {
            "model_name": lesson.model,
            "dataset_config": {"rows": samples, "max_length": 128},
            "training_config": lesson.training,
            "user_id": "demo",
            "target_effective_batch_size": lesson.window,
        },
    )
    console.print(f"Teaching it {len(samples)} answers as job {job['training_id']}:", markup=False, highlight=False)
    if console.is_terminal:
        with bar_view() as view:
            done = observe(service, job["training_id"], view)
    else:
        done = observe(service, job["training_id"], PlainView())
    if done["status"] != "succeeded":
        raise CommandError(f"the job is {done['status']}: {done['error'] or 'the service gave no reason'}")
    return done


def answers(home: Path, model: str, longest: int) -> list[str]:
    """A model's answers to the questions, from a process of its own."""
    questions = [probe.question for probe in PROBES]
    command = [sys.executable, "-m", "onyx.demo.answers", str(home), model, str(longest), *questions]
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    child = subprocess.run(command, capture_output=True, text=True, env=os.environ | quiet, check=False)  # noqa: S603
    if child.returncode != 0:
        raise CommandError(f"{model} gave no answers: {child.stderr.strip().splitlines()[-1:]}")
    return [str(answer) for answer in json.loads(child.stdout)]


def compare(before: list[str], after: list[str]) -> None:
    """Print both answers to each question, and how many of the facts each contains."""
    table = Table("question", "before", "after", show_lines=True)
    for probe, former, latter in zip(PROBES, before, after, strict=True):
        table.add_row(probe.question, former or "(nothing)", latter or "(nothing)")
    console.print(table, markup=False)
    known = [sum(probe.fact in answer for probe, answer in zip(PROBES, each, strict=True)) for each in (before, after)]
    console.print(f"Of {len(PROBES)} facts it knew {known[0]} before and {known[1]} after.", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
