"""Contenders take turns on one workload, each in its own process."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import table
from benchmarks.speed.peers import RunLog, parse_log
from benchmarks.speed.workload import Workload
from onyx.jobs.launch.fork_launcher import FORK_SERVER_ENVIRONMENT

OURS = {"Onyx": "no", "Onyx, compiled": "yes"}
TIMEOUT_SECONDS = 900


@dataclass(frozen=True, kw_only=True)
class ContenderResult:
    """One contender over all turns."""

    name: str
    rates: list[float]
    """Tokens per second of each turn, padding not counted."""

    losses: list[float]
    peaks: list[float]
    """The machine's operations per second in plain products, just before each turn."""

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


def compare(workload: Workload, names: list[str], turns: int, folder: Path) -> list[ContenderResult]:
    """All of them, `turns` times, beginning with another one each time."""
    path = workload.write(folder / "workload.json")
    logs: dict[str, list[RunLog]] = {name: [] for name in names}
    peaks: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(turns):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            peaks[name].append(_peak(workload.threads))
            made = _one(name, path, folder)
            logs[name].append(made)
            print(f"  turn {turn + 1}: {name}: {made.rate(workload.skipped):.0f} tokens/s", file=sys.stderr, flush=True)
    return [
        ContenderResult(
            name=name,
            rates=[each.rate(workload.skipped) for each in found],
            losses=found[-1].losses,
            peaks=peaks[name],
        )
        for name, found in logs.items()
    ]


def _peak(threads: int) -> float:
    """The best of some products of 2048 × 2048, in a process of its own, so that its threads end with it."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.speed.peak", str(threads)],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def _one(name: str, path: Path, folder: Path) -> RunLog:
    if name in OURS:
        place = tempfile.mkdtemp(dir=folder)
        command = ["-m", "benchmarks.speed.onyx_run", str(path), place, OURS[name]]
    else:
        command = ["-m", "benchmarks.speed.peers", name, str(path)]
    done = subprocess.run(
        [sys.executable, *command],
        env=_environment(name, path, folder),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    if done.returncode:
        raise RuntimeError(f"{name} failed: {done.stderr[-2000:]}")
    return parse_log(done.stdout)


def _environment(name: str, path: Path, folder: Path) -> dict[str, str]:
    """Onyx has the fork server's environment; others wait by OpenMP's default, the quickest for a single process."""
    threads = str(json.loads(path.read_text())["threads"])
    own = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "GOMP_"))}
    given = FORK_SERVER_ENVIRONMENT if name in OURS else {}
    kept = {"ONYX_HOME": str(folder / "home"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "peers")}
    return own | given | kept | {"OMP_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false"}


def ranking(results: list[ContenderResult], base: str) -> str:
    """Fastest first, as Markdown."""
    against = next(each for each in results if each.name == base)
    rows = []
    for each in sorted(results, key=lambda each: -each.rate):
        ratios = [mine / other for mine, other in zip(each.rates, against.rates, strict=True)]
        spread = f"{min(ratios):.2f} … {max(ratios):.2f}"
        rows.append([each.name, f"{each.rate:.0f}", f"{statistics.median(ratios):.2f}", spread])
    return table(["contender", "tokens/s", f"× {base}", "spread"], rows)


def largest_difference(ours: ContenderResult, theirs: ContenderResult) -> float:
    """The largest relative difference of two loss curves."""
    pairs = zip(ours.losses, theirs.losses, strict=True)
    return max(abs(mine - other) / abs(other) for mine, other in pairs)
