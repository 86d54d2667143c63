from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onyx.accumulation.gauge import Gauge
from onyx.accumulation.system import GradientAccumulator
from onyx.accumulation.system.micro_batch import MicroBatchSizer, halve_under_pressure, next_part, parts
from onyx.accumulation.system.state import AccumulationState
from tests.accumulation.system.common import CPU, Dial, config_of, slope


@pytest.mark.parametrize(
    ("pressure", "current", "expected"),
    [(0.9, 16, 8), (0.9, 3, 1), (0.9, 1, 1), (0.8, 16, 16), (0.5, 8, 8), (0.3, 8, 16), (0.3, 16, 16), (0.3, 12, 16)],
)
def test_half_under_pressure_and_back(pressure: float, current: int, expected: int) -> None:
    gauge = Gauge(own=0, used=round(pressure * 1000), total=1000)
    assert halve_under_pressure(current=current, largest=16, gauge=gauge, threshold=0.8) == expected


@given(samples=st.integers(1, 200), micro=st.integers(1, 70))
def test_parts_are_nearly_equal_and_none_too_large(samples: int, micro: int) -> None:
    sizes, left = [], samples
    while left:
        sizes.append(next_part(left, micro))
        left -= sizes[-1]
    assert len(sizes) == parts(samples, micro)
    assert max(sizes) <= micro
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("threshold", "expected"), [(0.8, 16), (0.6, 8)])
def test_the_threshold_decides(threshold: float, expected: int) -> None:
    state = AccumulationState(micro_batch_size=16)
    config = config_of(strategy="memory_aware", effective_batch_size=16, memory_threshold=threshold)
    MicroBatchSizer(Dial(0.7), halve_under_pressure).measure(config, state, CPU)
    assert state.micro_batch_size == expected


@pytest.mark.parametrize(
    ("mode", "strategy", "expected"),
    [
        ("standard", "memory_aware", 8),
        ("adaptive", "uniform", 8),
        ("standard", "uniform", 16),
        ("efficient", "uniform", 16),
    ],
)
def test_only_adaptive_mode_and_the_memory_aware_strategy_shrink(mode: str, strategy: str, expected: int) -> None:
    model, accumulator = slope(gauge=Dial(0.95), mode=mode, strategy=strategy, effective_batch_size=16)
    accumulator.accumulate_gradients(model(1.0))
    assert accumulator.micro_batch_size == expected
    assert accumulator.get_accumulation_stats()["memory_usage"] == 0.95


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"strategy": "memory_aware"}, 10),
        ({"mode": "adaptive", "effective_batch_size": 64, "target_batch_size": 128}, 10),
        ({}, 2),
        ({"logging_frequency": 4}, 5),
        ({"memory_monitoring": False}, 0),
    ],
)
def test_memory_is_read_where_a_window_depends_on_it_else_for_the_log(changes: dict[str, Any], expected: int) -> None:
    dial = Dial(0.5)
    model, accumulator = slope(**({"gauge": dial, "accumulation_steps": 2} | changes))
    for _ in range(20):
        accumulator.accumulate_gradients(model(1.0))
    assert dial.readings == expected
    assert len(accumulator.state.memory_usage) == expected


def test_no_monitoring_no_readings_no_pressure() -> None:
    dial = Dial(0.99)
    model, accumulator = slope(gauge=dial, strategy="memory_aware", mode="adaptive", memory_monitoring=False)
    accumulator.accumulate_gradients(model(1.0))
    assert dial.readings == 0
    assert accumulator.get_accumulation_stats()["memory_usage"] == 0.0
    assert accumulator.micro_batch_size == 64


def test_the_default_gauge_reads_the_real_memory() -> None:
    model, _ = slope()
    accumulator = GradientAccumulator(config_of())
    accumulator.setup_training(model, slope()[1].setup.optimizer, lambda output, target: output)
    accumulator.accumulate_gradients(model(1.0))
    assert 0 < accumulator.get_accumulation_stats()["memory_usage"] < 1


def test_the_memory_aware_strategy_never_touches_the_gradient() -> None:
    model, accumulator = slope(gauge=Dial(0.99), strategy="memory_aware", effective_batch_size=2, accumulation_steps=2)
    for _ in range(4):
        accumulator.accumulate_gradients(model(3.0))
    assert model.weight.item() == pytest.approx(-3.0)


@pytest.mark.parametrize("chosen", [0, -2, 2.5, None, 65])
def test_a_chooser_must_choose_what_is_allowed(chosen: Any) -> None:
    sizer = MicroBatchSizer(Dial(0.5), lambda **_: chosen)
    with pytest.raises(ValueError, match="a chosen micro-batch must be"):
        sizer.measure(config_of(strategy="memory_aware"), AccumulationState(micro_batch_size=64), CPU)
