import logging
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import StepLR

from onyx.accumulation.system import GradientAccumulationConfig, GradientAccumulator
from tests.accumulation.exact import (
    TOLERANCE,
    difference,
    dtypes,
    flat_grad,
    join,
    make_batches,
    make_model,
    mean_loss,
    ragged_sizes,
)
from tests.accumulation.system.common import Dial, accumulator_of, applied, config_of, slope


@given(sizes=ragged_sizes, dtype=dtypes)
@settings(max_examples=25)
def test_the_gradient_that_is_applied_is_the_big_batch_gradient(sizes: list[int], dtype: torch.dtype) -> None:
    model, batches = make_model(dtype), make_batches(sizes, dtype)
    mean_loss(model, join(batches)).backward()
    expected = flat_grad(model).clone()
    optimizer = SGD(model.parameters(), lr=0.1)
    accumulator = accumulator_of(model, optimizer, accumulation_steps=len(sizes))
    seen: list[torch.Tensor] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(flat_grad(model).clone()))
    for batch in batches:
        accumulator.accumulate_gradients(mean_loss(model, batch), weight=len(batch[0]))
    assert len(seen) == 1
    assert difference(seen[0], expected) < TOLERANCE[dtype]


def test_the_results_of_a_window() -> None:
    model, accumulator = slope(effective_batch_size=16)
    results = [accumulator.accumulate_gradients(model(1.0) + loss) for loss in (1.0, 2.0, 3.0, 4.0)]
    assert [result["accumulation_step"] for result in results] == [1, 2, 3, 4]
    assert [result["should_optimize"] for result in results] == [False, False, False, True]
    assert [result["loss"] for result in results] == [1.0, 2.0, 3.0, 4.0]
    assert [result["accumulated_loss"] for result in results] == [1.0, 3.0, 6.0, 10.0]
    assert {result["effective_batch_size"] for result in results} == {64}
    assert set(results[0]) == {
        "loss",
        "accumulated_loss",
        "accumulation_step",
        "should_optimize",
        "effective_batch_size",
    }
    assert all(type(result["loss"]) is float for result in results)


def test_the_stats() -> None:
    model, accumulator = slope(effective_batch_size=16, gauge=Dial(0.25))
    assert accumulator.get_accumulation_stats() == {
        "current_step": 0,
        "accumulation_step": 0,
        "accumulation_steps": 4,
        "effective_batch_size": 64,
        "accumulated_loss": 0.0,
        "average_gradient_norm": 0.0,
        "total_optimizer_steps": 0,
        "nan_detected": False,
        "overflow_detected": False,
        "memory_usage": 0.0,
    }
    applied(model, accumulator, [2.0] * 4 + [4.0] * 4)
    accumulator.accumulate_gradients(model(1.0) + 10)
    stats = accumulator.get_accumulation_stats()
    assert stats["current_step"] == 9
    assert stats["accumulation_step"] == 1
    assert stats["accumulated_loss"] == pytest.approx(model.weight.item() + 10)
    assert stats["average_gradient_norm"] == pytest.approx(3.0)
    assert stats["total_optimizer_steps"] == 2
    assert stats["memory_usage"] == 0.25
    assert accumulator.state.last_optimizer_step == 8


def test_after_an_update_no_window_is_open() -> None:
    model, accumulator = slope()
    applied(model, accumulator, [1.0] * 4)
    stats = accumulator.get_accumulation_stats()
    assert (stats["accumulation_step"], stats["accumulated_loss"]) == (0, 0.0)


def test_accumulation_steps_is_the_length() -> None:
    for steps in (1, 2, 5):
        model, accumulator = slope(accumulation_steps=steps)
        assert applied(model, accumulator, range(1, 11)) == pytest.approx(
            [sum(range(i + 1, i + steps + 1)) / steps for i in range(0, 10, steps)]
        )


def test_a_changed_length_applies_from_the_next_window() -> None:
    model, accumulator = slope(accumulation_steps=2)
    accumulator.accumulate_gradients(model(1.0))
    accumulator.config.accumulation_steps = 3
    assert accumulator.accumulate_gradients(model(1.0))["should_optimize"]
    assert [accumulator.accumulate_gradients(model(1.0))["should_optimize"] for _ in range(3)] == [False, False, True]


def test_a_flushed_window_is_weighted_by_its_own_length() -> None:
    model, accumulator = slope()
    applied(model, accumulator, [3.0, 5.0])
    assert accumulator.flush()
    assert model.weight.item() == pytest.approx(-4.0)
    assert not accumulator.flush()
    assert accumulator.state.optimizer_steps == 1


def test_loss_scaling_off_sums() -> None:
    model, accumulator = slope(loss_scaling=False)
    assert applied(model, accumulator, [1.0, 2.0, 3.0, 4.0]) == pytest.approx([10.0])
    applied(model, accumulator, [1.0, 2.0])
    before = model.weight.item()
    accumulator.flush()
    assert before - model.weight.item() == pytest.approx(3.0)


def test_loss_scaling_off_sums_the_gradients_of_the_callers_backward() -> None:
    model, accumulator = slope(loss_scaling=False, accumulation_steps=2)
    for value in (1.0, 2.0):
        loss = model(value)
        loss.backward()
        accumulator.accumulate_gradients(loss, backward=False)
    assert model.weight.item() == pytest.approx(-3.0)


@pytest.mark.parametrize("loss_scaling", [True, False])
def test_a_window_without_weight_is_skipped(loss_scaling: bool) -> None:
    model, accumulator = slope(accumulation_steps=2, loss_scaling=loss_scaling)
    for _ in range(2):
        accumulator.accumulate_gradients(model(math.nan), weight=0)
    assert accumulator.state.skipped_steps == 1
    assert accumulator.state.optimizer_steps == 0
    assert not accumulator.state.nan_detected
    assert model.weight.item() == 0.0


def test_clipping_covers_all_groups_and_is_optional() -> None:
    for clipping, expected in ((True, 0.5), (False, 5.0)):
        weights = [nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))]
        model = nn.ParameterList(weights)
        optimizer = SGD([{"params": [weight], "lr": 1.0} for weight in weights])
        accumulator = accumulator_of(
            model, optimizer, accumulation_steps=1, gradient_clipping=clipping, clipping_norm=0.5
        )
        accumulator.accumulate_gradients(3 * weights[0] + 4 * weights[1])
        assert math.hypot(*(weight.item() for weight in weights)) == pytest.approx(expected, rel=1e-5)
        assert accumulator.get_accumulation_stats()["average_gradient_norm"] == pytest.approx(5.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_handling_skips_the_update_and_counts_it(bad: float) -> None:
    model = nn.Linear(1, 1)
    optimizer = AdamW(model.parameters(), lr=0.1)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.5)
    accumulator = GradientAccumulator(config_of(accumulation_steps=2), gauge=Dial(0.5))
    accumulator.setup_training(model, optimizer, nn.MSELoss(), scheduler)
    before = model.weight.detach().clone()
    results = [accumulator.accumulate_gradients(model(torch.tensor([[x]])).sum()) for x in (1.0, bad)]
    assert results[1]["should_optimize"]
    assert torch.equal(model.weight, before)
    assert not optimizer.state
    assert (accumulator.state.optimizer_steps, accumulator.state.skipped_steps) == (0, 1)
    assert scheduler.get_last_lr() == [0.1]
    stats = accumulator.get_accumulation_stats()
    assert (stats["nan_detected"], stats["overflow_detected"]) == (math.isnan(bad), math.isinf(bad))
    assert stats["average_gradient_norm"] == 0.0
    for x in (1.0, 2.0):
        accumulator.accumulate_gradients(model(torch.tensor([[x]])).sum())
    assert accumulator.state.optimizer_steps == 1
    assert scheduler.get_last_lr() == [0.05]
    assert not torch.equal(model.weight, before)


def test_nan_handling_off_applies_a_nan_and_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    model, accumulator = slope(accumulation_steps=1, nan_handling=False)
    accumulator.accumulate_gradients(model(math.nan))
    assert math.isnan(model.weight.item())
    assert accumulator.state.optimizer_steps == 1
    assert accumulator.get_accumulation_stats()["nan_detected"]
    assert "applied as it is" in caplog.text


def test_log_lines_come_every_logging_frequency_micro_batches(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="onyx")
    for every, expected in ((1, 12), (5, 2), (20, 0)):
        caplog.clear()
        model, accumulator = slope(logging_frequency=every)
        applied(model, accumulator, [1.0] * 12)
        assert sum(record.getMessage().startswith("micro-batch") for record in caplog.records) == expected


def test_backward_by_caller_and_by_accumulator_do_not_mix() -> None:
    model, accumulator = slope()
    accumulator.accumulate_gradients(model(1.0))
    with pytest.raises(ValueError, match="do not mix"):
        accumulator.accumulate_gradients(model(1.0), backward=False)
    accumulator.drop_window()
    accumulator.accumulate_gradients(model(1.0), backward=False)
    with pytest.raises(ValueError, match="do not mix"):
        accumulator.accumulate_gradients(model(1.0))
    assert accumulator.state.accumulation_step == 1


def test_weighted_and_plain_micro_batches_do_not_mix() -> None:
    model, accumulator = slope()
    accumulator.accumulate_gradients(model(1.0), weight=2)
    with pytest.raises(ValueError, match="do not mix"):
        accumulator.accumulate_gradients(model(1.0))
    assert accumulator.state.accumulation_step == 1


def test_a_failed_backward_drops_the_window() -> None:
    model, accumulator = slope()
    accumulator.accumulate_gradients(model(1.0))
    loss = model(model.weight)  # needs its saved tensors, which the first backward frees
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        accumulator.accumulate_gradients(loss)
    assert accumulator.state.window is None
    assert model.weight.grad is None
    assert applied(model, accumulator, [2.0] * 4) == pytest.approx([2.0])


def test_nothing_works_before_setup(tmp_path: Any) -> None:
    accumulator = GradientAccumulator(GradientAccumulationConfig())
    assert accumulator.model is None
    assert accumulator.get_accumulation_stats()["current_step"] == 0
    for call in (
        lambda: accumulator.accumulate_gradients(torch.ones((), requires_grad=True)),
        lambda: accumulator.save_accumulation_state(tmp_path / "state"),
        lambda: accumulator.load_accumulation_state(tmp_path / "state"),
    ):
        with pytest.raises(RuntimeError, match="setup_training"):
            call()


@pytest.mark.parametrize("config", [None, {"accumulation_steps": 4}, 4])
def test_anything_but_a_config_is_refused(config: Any) -> None:
    with pytest.raises(ValueError, match="config must be a GradientAccumulationConfig"):
        GradientAccumulator(config)


def test_a_second_setup_starts_a_new_window() -> None:
    model, accumulator = slope()
    accumulator.accumulate_gradients(model(100.0))
    accumulator.setup_training(model, SGD(model.parameters(), lr=1.0), nn.MSELoss())
    assert applied(model, accumulator, [1.0] * 4) == pytest.approx([1.0])


def test_reset_clears_window_counters_and_readings() -> None:
    model, accumulator = slope()
    applied(model, accumulator, [1.0] * 5)
    accumulator.reset()
    assert accumulator.get_accumulation_stats()["current_step"] == 0
    assert model.weight.grad is None
    assert accumulator.noise.value is None


@pytest.mark.parametrize("changes", [{}, {"loss_scaling": False}, {"mode": "adaptive", "adaptive_scaling": True}])
def test_the_host_reads_nothing_inside_a_window(changes: dict[str, Any]) -> None:
    """The meta device has no values: reading one raises."""
    model = nn.Linear(5, 3)
    accumulator = GradientAccumulator(config_of(**changes), gauge=Dial(0.5))
    accumulator.setup_training(model, SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), device="meta")
    for _ in range(3):
        loss = model(torch.ones(2, 5, device="meta")).sum()
        result = accumulator.accumulate_gradients(loss, weight=torch.ones((), device="meta"))
        assert isinstance(result["loss"], torch.Tensor)
        assert isinstance(result["accumulated_loss"], torch.Tensor)
        assert not result["accumulated_loss"].requires_grad
    with pytest.raises((RuntimeError, NotImplementedError)):
        accumulator.flush()
