"""Each test would have caught a defect of an earlier implementation of document 004."""

import subprocess
import sys

import pytest
import torch
from torch.optim import SGD

from onyx.accumulation.gauge import Gauge
from onyx.accumulation.system import GradientAccumulator
from tests.accumulation.exact import make_batches, make_model, mean_loss
from tests.accumulation.system.common import applied, config_of, lengths, slope


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_a_constant_gradient_of_one_is_applied_as_one_every_time(steps: int) -> None:
    """Without zero_grad it was applied as 1, 2, 3, 4 …"""
    model, accumulator = slope(accumulation_steps=steps)
    assert applied(model, accumulator, [1.0] * 6 * steps) == pytest.approx([1.0] * 6)


def test_there_is_no_second_gradient_buffer() -> None:
    """All that a window allocates is `.grad`: one tensor per parameter, which backward adds to in place."""
    model, batches = make_model(), make_batches([2] * 3)
    accumulator = GradientAccumulator(config_of())
    accumulator.setup_training(model, SGD(model.parameters(), lr=0.1), lambda output, target: output)
    accumulator.accumulate_gradients(mean_loss(model, batches[0]))
    places = [p.grad.data_ptr() for p in model.parameters() if p.grad is not None]
    for batch in batches[1:]:
        accumulator.accumulate_gradients(mean_loss(model, batch))
    assert [p.grad.data_ptr() for p in model.parameters() if p.grad is not None] == places
    held = [value for value in vars(accumulator.state).values() if isinstance(value, torch.Tensor)]
    assert held == []


def test_memory_usage_is_the_share_of_the_device() -> None:
    """Not allocated memory over its own peak, which is 1.0 most of the time and says nothing about the device."""
    model, _ = slope()
    accumulator = GradientAccumulator(config_of(), gauge=lambda _: Gauge(own=70, used=250, total=1000))
    accumulator.setup_training(model, SGD(model.parameters(), lr=0.1), lambda output, target: output)
    accumulator.accumulate_gradients(model(1.0))
    assert accumulator.get_accumulation_stats()["memory_usage"] == 0.25


def test_a_nan_is_detected_before_clipping_and_stepping() -> None:
    model, accumulator = slope(gradient_clipping=True, accumulation_steps=2)
    assert applied(model, accumulator, [1.0, float("nan"), 0.5, 0.5]) == [0.0, 0.5]
    assert accumulator.get_accumulation_stats()["nan_detected"]
    assert accumulator.get_accumulation_stats()["total_optimizer_steps"] == 1


def test_the_schedule_is_used() -> None:
    """[2, 4, 8, 16] was ignored, and N was 4."""
    model, accumulator = slope(mode="progressive", accumulation_schedule=[2, 4, 8, 16], accumulation_steps=4)
    assert lengths(accumulator, model, 5) == [2, 4, 8, 16, 16]


def test_importing_changes_nothing_in_the_process() -> None:
    """Nor does it need pickle: state files are safetensors (see test_saved_state.py)."""
    script = (
        "import logging, warnings, torch\n"
        "before = (list(warnings.filters), list(logging.root.handlers), logging.root.level)\n"
        "import onyx.accumulation.system\n"
        "assert before == (list(warnings.filters), list(logging.root.handlers), logging.root.level)\n"
    )
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
