"""What durability costs: the start of a job, its checkpoints, and a second rank.

Start: from the request to the first update of `onyx/tiny` (8 samples), with a warm template; peer: a fresh
`python train.py` that imports transformers, loads the same model and makes one update. Checkpoints: counted seconds in
saves over the seconds of training, at the rule of one save per 20 × its own time. Ranks: samples per second of two
ranks of one thread each over one rank's, on the same machine.
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import table
from onyx.jobs.asking import job_spec
from onyx.jobs.home import Home
from onyx.jobs.ids import JobKind
from onyx.jobs.values import Job
from onyx.settings import Settings
from onyx.training.spec import JobSpec

STARTS = 7
FRESH = """
import torch, sys
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
optimizer = torch.optim.AdamW(model.parameters())
ids = torch.randint(0, 200, (8, 24))
model(input_ids=ids, labels=ids).loss.backward()
optimizer.step()
"""


def lesson(samples: int, devices: int = 1, repeat: int = 1, window: int = 8, **training: object) -> JobSpec:
    texts = [f"the square of {n} is {n * n}, " * repeat for n in range(samples)]
    return job_spec(
        model="onyx/tiny",
        data={"texts": texts, "max_length": 512},
        training={"epochs": 1, "learning_rate": 1e-3} | training,
        window=window,
        devices=devices,
    )


async def first_update(home: Home) -> float:
    """Seconds from the request to the end of the first update."""
    asked = time.time()
    job = await home.submit(lesson(64), "bench", JobKind.ACCUMULATION)
    await home.wait(job.id)
    return (await home.store.list_metrics(job.id))[0].time - asked


async def speed(home: Home, devices: int) -> tuple[float, Job]:
    """Samples per second of a longer job, by its own clock."""
    job = await home.submit(lesson(640, devices, repeat=12, window=64), "bench", JobKind.ACCUMULATION)
    job = await home.wait(job.id)
    if job.result is None:
        raise RuntimeError(f"{job.status}: {job.error}")
    return job.result.samples / job.result.seconds, job


async def saving_share(home: Home, job: Job) -> float:
    """Part of a job's training time that its checkpoints took."""
    events = await home.store.list_events(job.id, limit=1000)
    saves = sum(event.data["seconds"] for event in events if event.kind == "checkpoint")
    assert job.result is not None
    return float(saves / job.result.seconds)


async def play(folder: Path) -> list[list[str]]:
    home = await Home.open(Settings(home=folder, cpu_devices=2, cpu_memory="6GB"))
    try:
        await first_update(home)  # plans, and warms the template
        starts = [await first_update(home) for _ in range(STARTS)]
        fresh = [_fresh(next((folder / "models").glob("onyx-tiny*"))) for _ in range(3)]
        runs = [await speed(home, devices) for devices in (1, 2, 1, 2, 1)]  # in turn: the machine is noisy
        one, two = (statistics.mean(rate for rate, _ in runs[start::2]) for start in (0, 1))
        share = await saving_share(home, runs[0][1])
    finally:
        await home.close()
    start, peer = statistics.median(starts), statistics.median(fresh)
    return [
        ["request → first update, warm", f"{start:.2f} s", f"{start / peer:.2f} × a fresh interpreter ({peer:.2f} s)"],
        ["time in checkpoints", f"{share:.1%}", "of training time"],
        ["two ranks of one thread", f"{two:.0f} samples/s", f"{two / one:.2f} × one rank"],
    ]


def _fresh(model: Path) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", FRESH, str(model)], check=True, capture_output=True)
    return time.perf_counter() - started


def main() -> str:
    """The table, as Markdown."""
    with tempfile.TemporaryDirectory() as folder:
        return table(["what", "measured", "against"], asyncio.run(play(Path(folder))))


if __name__ == "__main__":
    print(main())
