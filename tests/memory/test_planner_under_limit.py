"""Under a real limit: the planned micro-batch trains, and is nearly the largest that does."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from benchmarks.memory_cases import Case, gpt2, largest, llama, trains
from onyx.memory.devices.device import Device
from onyx.memory.footprint.model_builder import build
from onyx.memory.planner import plan

LENGTH = 48
MIB = 2**20

NEARLY = 0.85
"""Of the largest micro-batch that trains."""


def warm(case: Case) -> None:
    """Import all that the model takes, as the fork server has: on the meta device no tensor is made."""
    build(case.config, case.recipe)


def trains_cleanly(case: Case, samples: int, limit: int) -> bool:
    """In a fork of a process that has run no tensor operation, as ranks are.

    A test run's own heap has holes, and a fork of it would fill them first: memory that no limit counts.
    """
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(1, mp_context=context, initializer=warm, initargs=(case,)) as pool:
        return pool.submit(trains, case, samples, LENGTH, limit).result()


@pytest.mark.parametrize(
    ("case", "sizes"),
    [
        (Case(name="Llama", config=llama(width=128, depth=3, vocabulary=3000), shapes=((1, LENGTH),)), (200,)),
        (
            Case(name="GPT-2", config=gpt2(width=128, depth=3), shapes=((1, LENGTH),), options={"method": "lora"}),
            (160,),
        ),
    ],
    ids=["Llama", "GPT-2"],
)
def test_it_trains_and_little_more_would(case: Case, sizes: tuple[int, ...]) -> None:
    for size in sizes:
        device = Device(kind="cpu", index=0, name="CPU", memory_total=size * MIB, memory_free=size * MIB)
        made = plan(case.recipe, effective_batch=4096, devices=[device]).devices[0]
        assert made.overhead_measured
        assert trains_cleanly(case, made.micro_batch, made.usable)
        assert not trains_cleanly(case, int(made.micro_batch / NEARLY) + 1, made.usable)


@pytest.mark.slow
def test_the_largest_by_search() -> None:
    case = Case(name="Llama", config=llama(width=192, depth=4), shapes=((1, LENGTH),))
    for size in (200, 300, 450):
        device = Device(kind="cpu", index=0, name="CPU", memory_total=size * MIB, memory_free=size * MIB)
        made = plan(case.recipe, effective_batch=4096, devices=[device]).devices[0]
        assert all(trains(case, made.micro_batch, LENGTH, made.usable) for _ in range(3))
        assert made.micro_batch >= 0.85 * largest(case, LENGTH, made.usable, made.micro_batch)
