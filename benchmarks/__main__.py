"""`make bench`: measures every claim of docs/benchmarks.md. Name modules to run only those."""

import importlib
import sys

import torch

MODULES = {
    "accumulation": "benchmarks.accumulation",
    "memory": "benchmarks.memory",
    "jobs": "benchmarks.jobs",
    "api": "benchmarks.api",
    "speed": "benchmarks.speed.report",
    "unequal": "benchmarks.speed.unequal",
    "finders": "benchmarks.speed.finders",
    "growth": "benchmarks.speed.growth",
}


def run() -> None:
    """Print each benchmark's tables below its module's docstring."""
    torch.set_num_threads(1)
    for name in sys.argv[1:] or MODULES:
        module = importlib.import_module(MODULES[name])
        print(f"\n## {name}\n\n{(module.__doc__ or '').strip()}\n", flush=True)
        print(module.main(), flush=True)


if __name__ == "__main__":
    run()
