"""What durability costs: the start of a job, its checkpoints, and a second rank.

Start: from the request to the first update of `onyx/tiny` with a warm fork server, windows of 8 and 32 samples; peer: a
fresh `python train.py` that imports transformers, loads the same model and makes one update. Checkpoints: counted
seconds in saves over the seconds of training, at the rule of one save per 20 × its own time. Ranks: samples per second
of two ranks of one thread each over one rank's; the machine's own limit is what two jobs of one rank reach together
when they run at the same time. All take turns, because the machine is noisy.
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import ratio, table
from onyx.jobs.home import Home
from onyx.jobs.ids import JobKind
from onyx.jobs.models import Job
from onyx.jobs.spec_builder import job_spec
from onyx.settings import Settings
from onyx.training.contract.spec import JobSpec

STARTS = 9
WINDOWS = (8, 32)
TURNS = 5
FRESH = """
import torch, sys
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
optimizer = torch.optim.AdamW(model.parameters())
ids = torch.randint(0, 200, (8, 24))
model(input_ids=ids, labels=ids).loss.backward()
optimizer.step()
"""


def make_spec(samples: int, devices: int = 1, repeat: int = 1, window: int = 8, **training: object) -> JobSpec:
    texts = [f"the square of {n} is {n * n}, " * repeat for n in range(samples)]
    return job_spec(
        model="onyx/tiny",
        data={"texts": texts, "max_length": 512},
        training={"epochs": 1, "learning_rate": 1e-3} | training,
        window=window,
        devices=devices,
    )


async def first_update(home: Home, window: int) -> float:
    """Seconds from the request to the end of the first update."""
    began = time.time()
    job = await home.submit(make_spec(64, window=window), "bench", JobKind.ACCUMULATION)
    await home.wait(job.id)
    return (await home.store.events.list_metrics(job.id))[0].time - began


async def speed(home: Home, devices: int, jobs: int = 1) -> tuple[float, Job]:
    """Samples per second of longer jobs, by their own clocks, all together; and one of them."""
    spec = make_spec(640, devices, repeat=12, window=64)
    made = [await home.submit(spec, "bench", JobKind.ACCUMULATION) for _ in range(jobs)]
    done = [await home.wait(job.id) for job in made]
    rates = []
    for job in done:
        if job.result is None:
            raise RuntimeError(f"{job.status}: {job.error}")
        rates.append(job.result.samples / job.result.seconds)
    return sum(rates), done[0]


async def saving_share(home: Home, job: Job) -> float:
    """Part of a job's training time that its checkpoints took."""
    events = await home.store.events.list(job.id, limit=1000)
    saves = sum(event.data["seconds"] for event in events if event.kind == "checkpoint")
    assert job.result is not None
    return float(saves / job.result.seconds)


async def starts(home: Home, folder: Path) -> list[list[str]]:
    """A line for each size of window."""
    await first_update(home, WINDOWS[0])  # plans, and starts the fork server
    turns = [[await first_update(home, window) for window in WINDOWS] for _ in range(STARTS)]
    peer = statistics.median(_fresh(next((folder / "models").glob("onyx-tiny*"))) for _ in range(3))
    return [
        [
            f"request → first update, warm, windows of {window}",
            _seconds(taken),
            f"{statistics.median(taken) / peer:.2f} × a fresh interpreter ({peer:.2f} s)",
        ]
        for window, taken in zip(WINDOWS, zip(*turns, strict=True), strict=True)
    ]


async def ranks(home: Home) -> list[list[str]]:
    """One rank, two ranks, and two jobs of one rank at once."""
    turns = [(await speed(home, 1), await speed(home, 2), await speed(home, 1, jobs=2)) for _ in range(TURNS)]
    one, two, apart = ([turn[place][0] for turn in turns] for place in range(3))
    share = statistics.median([await saving_share(home, turn[0][1]) for turn in turns])
    return [
        ["time in checkpoints", f"{share:.1%}", "of training time"],
        ["two ranks of one thread", f"{statistics.median(two):.0f} samples/s", f"{ratio(two, one)} × one rank"],
        [
            "two jobs of one rank at once",
            f"{statistics.median(apart):.0f} samples/s",
            f"{ratio(apart, one)} × one rank",
        ],
        ["two ranks against two jobs", "", f"{ratio(two, apart)}"],
    ]


async def measure(folder: Path) -> list[list[str]]:
    home = await Home.open(Settings(home=folder, cpu_devices=2, cpu_memory="6GB"))
    try:
        return [*await starts(home, folder), *await ranks(home)]
    finally:
        await home.close()


def _seconds(taken: Sequence[float]) -> str:
    low, middle, high = statistics.quantiles(taken, n=4)
    return f"{middle:.2f} s ({low:.2f} … {high:.2f})"


def _fresh(model: Path) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", FRESH, str(model)], check=True, capture_output=True)
    return time.perf_counter() - started


def main() -> str:
    """The table, as Markdown."""
    with tempfile.TemporaryDirectory() as folder:
        return table(["what", "measured", "against"], asyncio.run(measure(Path(folder))))


if __name__ == "__main__":
    print(main())
