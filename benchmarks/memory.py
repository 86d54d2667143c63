"""Memory: how well plans predict what training takes, beside `accelerate estimate-memory`.

python -m benchmarks.memory
"""

import os
import tempfile
import time
from collections.abc import Iterator
from statistics import mean
from typing import Any

from benchmarks.memory_cases import (
    Case,
    gpt2,
    grown,
    held_out,
    largest,
    live_error,
    llama,
    process_growth,
    qwen2,
    qwen3,
    trains,
)
from onyx.memory.devices.device import Device
from onyx.memory.footprint.estimate import estimate
from onyx.memory.footprint.stored import overhead_of
from onyx.memory.planner import plan

MIB = 2**20
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"method": "lora"}, {"gradient_checkpointing": True})
LENGTH = 64  # short, so that one sample more or less is a small part of a micro-batch


def main() -> None:
    """Print the tables."""
    import transformers

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory() as home:
        os.environ["ONYX_HOME"] = home
        cost()
        growth()  # before anything real ran here: a fork inherits the holes of its parent's heap
        choice()
        live()


def live() -> None:
    """Predicted and measured peak of live tensors."""
    print("\nPeak of live tensors: predicted against measured, MiB (accelerate: its figure for Adam training)")
    errors = []
    for case in held_out():
        footprint = estimate(case.config, case.recipe, "cpu")
        other = accelerate_estimate(case)
        for (samples, length), seen, error in live_error(case, footprint):
            errors.append(error)
            theirs = f"{other / MIB:8.1f} ({100 * (other / seen - 1):+6.1f} %)"
            print(f"  {case.name:44} {samples:3} × {length:3}  {seen / MIB:8.1f} {100 * error:+8.4f} %  {theirs}")
    worst = 100 * min(0.0, *errors)
    print(f"  {len(errors)} points: mean error {100 * mean(map(abs, errors)):.4f} %, worst under {worst:.4f} %")


def growth() -> None:
    """Expected and measured growth of a training process."""
    overhead = overhead_of(cpu(2**33))
    print(f"\nGrowth of a process: fixed {overhead.fixed / MIB:.1f} MiB, slack {overhead.slack:.4f}")
    errors = []
    for case in grown():
        footprint = estimate(case.config, case.recipe, "cpu")
        for samples, length in case.shapes:
            seen = process_growth(case, samples, length)
            error = overhead.expected(footprint.peak(samples, length)) / seen - 1
            errors.append(error)
            print(f"  {case.name:44} {samples:3} × {length:3}  {seen / MIB:8.1f} {100 * error:+7.2f} %")
    worst = 100 * min(0.0, *errors)
    print(f"  {len(errors)} points: mean error {100 * mean(map(abs, errors)):.2f} %, worst under {worst:.2f} %")


def choice() -> None:
    """The planned micro-batch beside the largest that trains under a real limit."""
    print("\nChoice under RLIMIT_DATA: planned, largest that trains, ratio")
    for case in chosen():
        for size in (160, 260, 420):
            choose(case, LENGTH, size)
    print("\nThe same at limits, widths, depths and lengths that the planner's reserve was not tuned on")
    for case, size in chosen_held_out():
        choose(case, case.shapes[0][1], size)


def choose(case: Case, length: int, size: int) -> None:
    """One limit: a line of the table."""
    made = plan(case.recipe, effective_batch=4096, devices=[cpu(size * MIB)]).devices[0]
    fine = all(trains(case, made.micro_batch, length, made.usable) for _ in range(3))
    most = largest(case, length, made.usable, made.micro_batch)
    print(
        f"  {case.name:48} {made.usable / MIB:6.0f} MiB  {made.micro_batch:4} {most:4} "
        f"{made.micro_batch / most:6.2f}  {'trains' if fine else 'RUNS OUT'}",
        flush=True,
    )


def chosen() -> Iterator[Case]:
    """The limits that the planner's reserve was first tuned on."""
    for family in (gpt2, llama):
        for options in OPTIONS:
            config = family(width=192, depth=4, vocabulary=4000)
            yield Case(name=f"{config.model_type} {options}", config=config, shapes=((1, LENGTH),), options=options)


def chosen_held_out() -> Iterator[tuple[Case, int]]:
    """Other families, widths, depths, lengths and limits: (case, MiB of the device)."""
    for family, width, depth, length, size in (
        (qwen2, 160, 6, 48, 200),
        (qwen3, 224, 3, 80, 300),
        (gpt2, 128, 8, 40, 180),
        (llama, 256, 2, 56, 240),
    ):
        for options in OPTIONS:
            config = family(width=width, depth=depth, vocabulary=3000)
            name = f"{config.model_type} {width} × {depth}, {length} tokens {options}"
            yield Case(name=name, config=config, shapes=((1, length),), options=options), size


def cost() -> None:
    """What planning itself takes."""
    from transformers import GPT2Config

    from onyx.memory.recipe import Recipe

    cards = [{"name": "A100", "memory_gb": 40}]
    recipe = Recipe(model=GPT2Config())
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        plan(recipe, effective_batch=64, devices=cards)
        seconds.append(time.perf_counter() - start)
    print(f"Planning GPT-2 small: first {seconds[0]:.2f} s, from cache {1000 * seconds[1]:.1f} ms")


def accelerate_estimate(case: Case) -> float:
    """Bytes that `accelerate estimate-memory` names for training with Adam in float32."""
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    from onyx.memory.footprint.model_builder import build

    model: Any = build(case.config, case.recipe.changed(method="full", gradient_checkpointing=False))
    total, _ = calculate_maximum_sizes(model)
    return float(max(estimate_training_usage(total, "float32").values()))


def cpu(size: int) -> Device:
    """A slice of the CPU of `size` bytes."""
    return Device(kind="cpu", index=0, name="CPU", memory_total=size, memory_free=size, cores=1)


if __name__ == "__main__":
    main()
