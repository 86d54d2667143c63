"""Two ranks of which one has half a core: a busy process shares the other's.

Each rank is tied to a core of its own. Alone: each by itself, under the same conditions, the busy process among them
(it takes a tenth of the other core's speed, and would do so without any second rank). Equal: a first job of both,
whose plan knows nothing of their speeds. Unequal: the same job planned again, with what the first one's ranks measured.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import table
from benchmarks.speed import onyx_run
from benchmarks.speed.corpus import real, texts, train_tokenizer
from benchmarks.speed.workload import Workload, make_llama
from onyx.training.contract.attempt import Attempt
from onyx.training.contract.child_process import Niceness

TURNS = 2
SETTINGS = ((64, 24, 2), (256, 7, 1))
"""Samples of a window, updates, and those of them that are not timed. Once per update gradients are exchanged."""

BUSY = f"import os; os.nice({Niceness.RANK})\nwhile True: pass"


def main() -> str:
    """The table, as Markdown."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        lines = texts()
        tokenizer = train_tokenizer(lines)
        model = make_llama(root / "llama", tokenizer, width=192, depth=4)
        tables = []
        for window, updates, skipped in SETTINGS:
            place = root / str(window)
            os.environ["ONYX_HOME"] = str(place / "home")  # nothing measured is known to the first job of each
            samples = real(tokenizer, lines, window * updates)
            workload = Workload(
                model=str(model),
                data="",
                window=window,
                micro_batch=8,
                updates=updates,
                skipped=skipped,
                threads=1,
            )
            data = onyx_run.write_data(place / "data", samples)
            measured = _measure(workload, place, data, [len(each) for each in samples])
            tables.append(f"Windows of {window}:\n\n{measured}")
        return "\n\n".join(tables)


def _measure(workload: Workload, root: Path, data: Path, lengths: list[int]) -> str:
    def job(name: str, devices: int) -> Attempt:
        return onyx_run.compose(workload, root / name, data, lengths, compile_step=False, devices=devices)

    rates: dict[str, list[float]] = {"whole core": [], "half a core": [], "equal shares": [], "by speed": []}
    for turn in range(TURNS):
        with _busy(1):
            rates["whole core"].append(_rate(job(f"whole-{turn}", 1), workload, [0]))
            rates["half a core"].append(_rate(job(f"half-{turn}", 1), workload, [1]))
            equal = onyx_run.with_shares(job(f"equal-{turn}", 2), share=0.5)
            rates["equal shares"].append(_rate(equal, workload, [0, 1]))
            planned = job(f"speed-{turn}", 2)
            rates["by speed"].append(_rate(planned, workload, [0, 1]))
            print(f"  shares {[round(each.share, 2) for each in planned.shares]}", file=sys.stderr, flush=True)
    return _table(rates)


def _table(rates: dict[str, list[float]]) -> str:
    sums = [whole + half for whole, half in zip(rates["whole core"], rates["half a core"], strict=True)]
    rows = []
    for name, found in rates.items():
        parts = [rate / both for rate, both in zip(found, sums, strict=True)]
        spread = f"{statistics.median(parts):.2f} ({min(parts):.2f} … {max(parts):.2f})"
        rows.append([name, f"{statistics.median(found):.0f}", spread])
    return table(["ranks", "tokens/s", "of the sum of both alone"], rows)


def _rate(attempt: Attempt, workload: Workload, cores: list[int]) -> float:
    processes = [onyx_run.start(attempt, rank, core=core) for rank, core in enumerate(cores)]
    codes = [process.wait() for process in processes]
    if any(codes):
        raise RuntimeError((attempt.attempt_dir / "rank-0.log").read_text()[-3000:])
    return onyx_run.read_log(attempt).rate(workload.skipped)


@contextmanager
def _busy(core: int) -> Iterator[None]:
    """Another process that keeps this core busy, as nice as a rank."""
    process = subprocess.Popen(["taskset", "-c", str(core), sys.executable, "-c", BUSY])  # noqa: S607
    try:
        yield
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    print(main())
