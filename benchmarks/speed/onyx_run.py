"""Onyx on a workload: prepared data, a plan, and ranks in their own processes, as a runner starts them."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed.peers import RunLog
from benchmarks.speed.workload import Workload
from onyx.jobs.launch.fork_launcher import FORK_SERVER_ENVIRONMENT
from onyx.memory.devices.device import Device
from onyx.training.contract.attempt import Attempt, attempt_dir
from onyx.training.contract.spec import DataSpec, JobSpec, TrainingSpec
from onyx.training.data.encode import Encoded
from onyx.training.data.token_store import Meta, Writer, write_meta
from onyx.training.models.load import build_empty, load_config
from onyx.training.packing.order import Order
from onyx.training.prepare.plan_job import plan_job
from onyx.training.state.events import read_events

SEED = 0


def in_onyx_order(samples: list[list[int]]) -> list[list[int]]:
    """Samples in the order in which Onyx trains on them, for the other contenders."""
    order = Order(count=len(samples), seed=SEED).samples(0, np.arange(len(samples)))
    return [samples[index] for index in order.tolist()]


def write_data(out: Path, samples: list[list[int]]) -> Path:
    """The samples as a prepared directory."""
    out.mkdir(parents=True)
    lengths = [len(each) for each in samples]
    with Writer(out) as writer:
        for each in samples:
            tokens = np.array(each, dtype=np.int32)
            writer.add(Encoded(tokens=tokens, mask=np.ones(len(each), dtype=bool), truncated=False))
        writer.split(np.zeros(len(samples), dtype=bool))
    write_meta(
        out,
        Meta(
            key=out.name,
            samples=len(samples),
            evaluation_samples=0,
            tokens=sum(lengths),
            label_tokens=sum(lengths) - len(lengths),
            longest=max(lengths),
            lengths=[(max(lengths), len(lengths))],
            truncated=0,
            bad_lines=0,
            findings=[],
            highest_token=max(map(max, samples)),
        ),
    )
    return out


def compose(
    workload: Workload,
    folder: Path,
    data: Path,
    lengths: list[int],
    *,
    compile_step: bool,
    devices: int = 1,
    memory: int = 6 * 2**30,
) -> Attempt:
    """A job's attempt, planned for slices of this CPU."""
    spec = JobSpec(
        model=workload.model,
        data=DataSpec(texts=["-"]),
        training=TrainingSpec(
            epochs=1,
            learning_rate=workload.learning_rate,
            schedule="constant",
            method="lora" if workload.method == "lora" else "full",
            seed=SEED,
            compile=compile_step,
        ),
        window=workload.window,
        devices=devices,
    )
    config = load_config(Path(workload.model))
    slices = [
        Device(kind="cpu", index=i, name="CPU", memory_total=memory, memory_free=memory, cores=workload.threads)
        for i in range(devices)
    ]
    planned = plan_job(spec, config, build_empty(config), np.array(lengths), len(lengths), slices)
    job = folder / "job"
    attempt = attempt_dir(job, 1)
    return Attempt(
        job_id="bench",
        number=1,
        spec=spec,
        plan=planned.plan,
        shares=planned.shares,
        precision=planned.precision,
        model_dir=Path(workload.model),
        layout=planned.plan["layout"],
        compile_dir=folder.parent / "compiled" if compile_step else None,
        data_dir=data,
        job_dir=job,
        attempt_dir=attempt,
        rendezvous=attempt / "rendezvous",
        lease_seconds=3600.0,
    )


def start(attempt: Attempt, rank: int = 0, core: int | None = None) -> "subprocess.Popen[bytes]":
    """One rank, on one core where that is asked for."""
    attempt.attempt_dir.mkdir(parents=True, exist_ok=True)
    path = attempt.attempt_dir / "attempt.json"
    path.write_text(attempt.model_dump_json())
    threads = str(attempt.shares[rank].threads)
    log = (attempt.attempt_dir / f"rank-{rank}.log").open("wb")
    tied = ["taskset", "-c", str(core)] if core is not None else []
    command = [*tied, sys.executable, "-m", "onyx.training.rank.main", str(path), str(rank)]
    environment = os.environ | FORK_SERVER_ENVIRONMENT | {"OMP_NUM_THREADS": threads}
    return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def run(attempt: Attempt) -> RunLog:
    """All ranks, to their end."""
    processes = [start(attempt, rank) for rank in range(len(attempt.shares))]
    codes = [process.wait() for process in processes]
    if any(codes):
        raise RuntimeError((attempt.attempt_dir / "rank-0.log").read_text()[-3000:])
    return read_log(attempt)


def read_log(attempt: Attempt) -> RunLog:
    """From the events that the rank wrote at the end of each update."""
    found = RunLog()
    for event in read_events(attempt.attempt_dir / "events.jsonl"):
        if event.kind == "metrics":
            found.times.append(event.time)
            found.tokens.append(event.data["trained_tokens"])
    with (attempt.job_dir / "metrics.csv").open() as file:
        found.losses.extend(float(row["loss"]) for row in csv.DictReader(file))
    return found


def with_shares(attempt: Attempt, **changes: Any) -> Attempt:
    """The attempt with every share changed."""
    return attempt.model_copy(update={"shares": [each.model_copy(update=changes) for each in attempt.shares]})


def main(path: str, folder: str, compile_step: str) -> None:
    """As a contender: `python -m benchmarks.speed.onyx_run <workload.json> <folder> <yes or no>`."""
    workload = Workload.read(path)
    wanted = workload.samples()
    place = np.argsort(Order(count=len(wanted), seed=SEED).samples(0, np.arange(len(wanted))))
    mine = [wanted[index] for index in place.tolist()]  # so that Onyx trains on them in the workload's order
    home = Path(folder)
    data = write_data(home / "data", mine)
    lengths = [len(each) for each in mine]
    made = run(compose(workload, home, data, lengths, compile_step=compile_step == "yes"))
    sys.stdout.write("\n" + json.dumps(vars(made)) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
