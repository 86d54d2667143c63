"""Under a real limit: the planned micro-batch trains, and is nearly the largest that does."""

import pytest

from benchmarks.memory_cases import Case, gpt2, largest, llama, trains
from onyx.memory.device import Device
from onyx.memory.planner import plan

LENGTH = 48
MIB = 2**20


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
        assert trains(case, made.micro_batch, LENGTH, made.usable)
        assert not trains(case, int(made.micro_batch / 0.85) + 1, LENGTH, made.usable)


@pytest.mark.slow
def test_the_largest_by_search() -> None:
    case = Case(name="Llama", config=llama(width=192, depth=4), shapes=((1, LENGTH),))
    for size in (200, 300, 450):
        device = Device(kind="cpu", index=0, name="CPU", memory_total=size * MIB, memory_free=size * MIB)
        made = plan(case.recipe, effective_batch=4096, devices=[device]).devices[0]
        assert all(trains(case, made.micro_batch, LENGTH, made.usable) for _ in range(3))
        assert made.micro_batch >= 0.85 * largest(case, LENGTH, made.usable, made.micro_batch)
