"""Ratios in one run: contenders take turns, each turn is timed, medians are compared.

The machine is noisy, so a few per cent of wall time mean nothing by themselves: CPU time stands beside it, and the
spread of the turns' ratios says how far a number can be trusted.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Turns:
    """What one contender needed in each of its turns."""

    wall: list[float]
    cpu: list[float]


@dataclass(frozen=True)
class Ratio:
    """A contender against the peer, turn by turn."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} … {self.high:.3f})"


def interleave(contenders: Mapping[str, Callable[[], object]], turns: int, warm_up: int = 2) -> dict[str, Turns]:
    """Time every contender `turns` times, in turn, beginning with another one each time."""
    for _ in range(warm_up):
        for run in contenders.values():
            run()
    taken = {name: Turns([], []) for name in contenders}
    names = list(contenders)
    for turn in range(turns):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            wall, cpu = time.perf_counter(), time.process_time()
            contenders[name]()
            taken[name].wall.append(time.perf_counter() - wall)
            taken[name].cpu.append(time.process_time() - cpu)
    return taken


def ratio(ours: list[float], theirs: list[float]) -> Ratio:
    """The median of the turns' ratios with its middle half."""
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4)
    return Ratio(median, low, high)


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
