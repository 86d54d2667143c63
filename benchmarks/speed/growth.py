"""As work grows: tokens per second and memory for more samples, and for larger windows.

A rank of one thread trains a small model for some seconds of steady state and is stopped; lengths are log-normal.
"""

import os
import signal
import tempfile
import time
from pathlib import Path

from benchmarks.measure import table
from benchmarks.speed import onyx_run
from benchmarks.speed.corpus import log_normal
from benchmarks.speed.workload import Workload
from onyx.training.contract.attempt import Attempt
from onyx.training.models.tiny import make_tiny
from onyx.training.state.events import read_events

SECONDS = 12
COUNTS, WINDOWS = (1_000, 10_000, 100_000), (8, 64, 512)
TURNS = 2


def main() -> str:
    """The tables, as Markdown."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        os.environ["ONYX_HOME"] = str(root / "home")
        model = make_tiny(root / "models")
        samples = log_normal(max(COUNTS), vocabulary=250)
        data = {count: onyx_run.write_data(root / f"data-{count}", samples[:count]) for count in COUNTS}
        lengths = [len(each) for each in samples]
        settings = [(count, 32) for count in COUNTS] + [(10_000, window) for window in WINDOWS]
        found: dict[tuple[int, int], list[tuple[float, int]]] = {each: [] for each in settings}
        for turn in range(TURNS):
            for count, window in settings:
                workload = _workload(model, window)
                place = root / f"{count}-{window}-{turn}"
                attempt = onyx_run.compose(workload, place, data[count], lengths[:count], compile_step=False)
                found[count, window].append(_steady(attempt))
    return _table(found)


def _workload(model: Path, window: int) -> Workload:
    return Workload(model=str(model), data="", window=window, micro_batch=8, updates=1, skipped=1, threads=1)


def _steady(attempt: Attempt) -> tuple[float, int]:
    """Tokens per second between the second second of training and the last, and the most bytes."""
    process = onyx_run.start(attempt)
    path = attempt.attempt_dir / "events.jsonl"
    while not path.exists() or not any(event.kind == "metrics" for event in read_events(path)):
        if process.poll() is not None:
            raise RuntimeError((attempt.attempt_dir / "rank-0.log").read_text()[-2000:])
        time.sleep(0.1)
    time.sleep(SECONDS)
    process.send_signal(signal.SIGTERM)
    process.wait()
    events = [event for event in read_events(path) if event.kind == "metrics"][1:]
    tokens = events[-1].data["trained_tokens"] - events[0].data["trained_tokens"]
    return tokens / (events[-1].time - events[0].time), max(event.data["peak_bytes"] for event in events)


def _table(found: dict[tuple[int, int], list[tuple[float, int]]]) -> str:
    best = {each: max(rate for rate, _ in rates) for each, rates in found.items()}
    rows = []
    for (count, window), rates in found.items():
        base = best[COUNTS[0], 32] if window == 32 else best[10_000, WINDOWS[0]]
        peak = max(size for _, size in rates) / 2**20
        rate = best[count, window]
        rows.append([f"{count:,}", str(window), f"{rate:.0f}", f"{rate / base:.2f}", f"{peak:.0f} MB"])
    return table(["samples", "window", "tokens/s", "× the smallest", "peak"], rows)


if __name__ == "__main__":
    print(main())
