import pytest

from benchmarks.memory_cases import llama
from onyx.memory.footprint.model_builder import build
from onyx.memory.planning.step_timer import measure_timing
from onyx.memory.recipe import Recipe


def test_a_line_through_real_steps() -> None:
    model = build(llama(depth=2), Recipe(model=None), "cpu")
    timing = measure_timing(model, [(1, 32), (8, 128)], causal=True)
    assert timing.per_token > 0
    assert timing.per_update > 0
    assert timing.seconds(micro_batches=2, tokens=2048) > timing.seconds(micro_batches=1, tokens=1024)


def test_one_size_gives_no_line() -> None:
    model = build(llama(depth=2), Recipe(model=None))
    with pytest.raises(ValueError, match="shapes must differ"):
        measure_timing(model, [(1, 32), (2, 16)], causal=True)
