"""The demo from its first line to its last. Nothing here imports torch: models run in processes of their own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from onyx.cli.client import Service
from onyx.cli.commands.download import fetch
from onyx.cli.commands.watch import PlainView, bar_view, observe
from onyx.cli.output import CommandFailure, duration
from onyx.demo.lesson import PROBES, Lesson, choose, rows
from onyx.demo.service import demo_home, running

console = Console()


def main() -> int:
    """Exit status 0 when the whole story went well."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()
    try:
        tell(choose(), demo_home())
    except CommandFailure as failure:
        console.print(f"The demo failed: {failure}", style="red", markup=False)
        return failure.status
    except KeyboardInterrupt:
        console.print("Stopped; nothing of it runs any more.")
        return 130
    console.print(f"All of it took {duration(time.monotonic() - began)}. Now serve your own: make run", markup=False)
    return 0


def tell(lesson: Lesson, home: Path) -> None:
    """Service, answers, fine-tune over HTTP, download, answers."""
    console.rule("Onyx: it fits, it is exact, it is not lost")
    with running(home) as service:
        console.print(f"The service runs, with its files in {home}", markup=False, highlight=False)
        console.print(f"Asking {lesson.model} about Onyx Harbour, a company that does not exist …", markup=False)
        before = answers(home, lesson.model, lesson.answer_tokens)
        job = train(service, lesson)
        model = home / "result"
        shutil.rmtree(model, ignore_errors=True)
        fetch(service, job["training_id"], model)
        console.print(f"The model was downloaded to {model}; asking it the same …", markup=False, highlight=False)
        after = answers(home, str(model), lesson.answer_tokens)
    compare(before, after)


def train(service: Service, lesson: Lesson) -> dict[str, Any]:
    """A fine-tune, asked for and followed over HTTP."""
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
        raise CommandFailure(f"the job {done['status']}: {done['error'] or 'no reason was given'}")
    return done


def answers(home: Path, model: str, longest: int) -> list[str]:
    """What a model says, from a process of its own."""
    questions = [probe.question for probe in PROBES]
    command = [sys.executable, "-m", "onyx.demo.answers", str(home), model, str(longest), *questions]
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    child = subprocess.run(command, capture_output=True, text=True, env=os.environ | quiet, check=False)  # noqa: S603
    if child.returncode != 0:
        raise CommandFailure(f"{model} could not be asked: {child.stderr.strip().splitlines()[-1:]}")
    return [str(answer) for answer in json.loads(child.stdout)]


def compare(before: list[str], after: list[str]) -> None:
    """Both answers to each question, and how many of the facts were learnt."""
    table = Table("question", "before", "after", show_lines=True)
    for probe, former, latter in zip(PROBES, before, after, strict=True):
        table.add_row(probe.question, former or "(nothing)", latter or "(nothing)")
    console.print(table, markup=False)
    known = [sum(probe.fact in answer for probe, answer in zip(PROBES, said, strict=True)) for said in (before, after)]
    console.print(f"Of {len(PROBES)} facts it knew {known[0]} before and {known[1]} after.", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
