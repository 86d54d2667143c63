"""How long windows are in each mode, and what happens at their end: skips, scalers, schedules."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR

from onyx.accumulation.loss_scaling import DynamicLossScaler, DynamicLossScalerConfig
from onyx.accumulation.system import (
    AccumulationState,
    GradientAccumulationConfig,
    GradientAccumulationTrainer,
    GradientAccumulator,
)
from onyx.accumulation.system.noise import NoiseScale
from onyx.accumulation.system.window_policy import expected_updates, window_length
from tests.accumulation.exact import difference, flat, make_batches, make_model, mean_loss
from tests.accumulation.system.common import Dial, Slope, accumulator_of, applied, config_of, lengths, slope, trainer_of


@pytest.mark.parametrize("kind", ["torch", "dynamic"])
@pytest.mark.parametrize("nan_handling", [True, False])
def test_an_injected_inf_skips_exactly_one_update(kind: str, nan_handling: bool) -> None:
    """Under a loss scaler overflows are normal, so they are skipped even with nan_handling=False."""
    model = Slope()
    optimizer = SGD(model.parameters(), lr=1.0)
    rates: list[int] = []
    scheduler = LambdaLR(optimizer, lambda epoch: rates.append(epoch) or 1.0)  # type: ignore[func-returns-value]
    scaler = (
        torch.amp.GradScaler("cpu", init_scale=1024.0)
        if kind == "torch"
        else DynamicLossScaler(DynamicLossScalerConfig(initial_scale=1024.0))
    )
    accumulator = GradientAccumulator(config_of(accumulation_steps=2, nan_handling=nan_handling), gauge=Dial(0.5))
    accumulator.setup_training(model, optimizer, nn.MSELoss(), scheduler, scaler=scaler)
    for value in (1.0, 3.0, 1.0, math.inf, 1.0, 3.0):
        accumulator.accumulate_gradients(model(value))
    assert model.weight.item() == pytest.approx(-4.0)
    assert (accumulator.state.optimizer_steps, accumulator.state.skipped_steps) == (2, 1)
    assert rates[-1] == 2
    scale = scaler.get_scale() if isinstance(scaler, torch.amp.GradScaler) else scaler.scale
    assert scale == 512.0
    stats = accumulator.get_accumulation_stats()
    assert stats["overflow_detected"]
    assert stats["average_gradient_norm"] == pytest.approx(2.0)


@pytest.mark.parametrize("nan_handling", [True, False])
def test_a_disabled_scaler_skips_no_update(nan_handling: bool) -> None:
    model, accumulator = slope(accumulation_steps=1, nan_handling=nan_handling)
    accumulator.scaler = torch.amp.GradScaler("cpu", enabled=False)
    accumulator.accumulate_gradients(model(math.nan))
    assert math.isnan(model.weight.item()) != nan_handling


def test_scaled_training_is_unscaled_training() -> None:
    plain, scaled = make_model(), make_model()
    batches = make_batches([4, 2, 5, 3, 1])
    for model, scaler in ((plain, None), (scaled, torch.amp.GradScaler("cpu"))):
        trainer = GradientAccumulationTrainer(config_of(accumulation_steps=2), gauge=Dial(0.5))
        trainer.setup_training(model, SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), scaler=scaler)
        assert trainer.train_epoch(batches)["optimization_steps"] == 3
    assert difference(flat(scaled), flat(plain)) < 1e-6


def test_unscaled_gradients_of_the_callers_backward_are_not_unscaled() -> None:
    model, accumulator = slope(accumulation_steps=2)
    scaler = torch.amp.GradScaler("cpu")
    accumulator.scaler = scaler
    for value in (1.0, 3.0):
        loss = model(value)
        loss.backward()
        accumulator.accumulate_gradients(loss, backward=False)
    assert model.weight.item() == pytest.approx(-2.0)
    assert scaler.get_scale() == 2.0**16


def test_a_nan_is_detected_before_anything_is_applied() -> None:
    """Clipping spreads a NaN over all gradients: the check must not come after it, and the weights must not move."""
    model = make_model()
    before = flat(model)
    accumulator = GradientAccumulator(config_of(accumulation_steps=1, gradient_clipping=True), gauge=Dial(0.5))
    accumulator.setup_training(model, SGD(model.parameters(), lr=0.1, momentum=0.9), nn.CrossEntropyLoss())
    loss = mean_loss(model, make_batches([3])[0])
    bias = next(p for n, p in model.named_parameters() if n == "2.bias")
    accumulator.accumulate_gradients(loss + bias[0] * math.nan)
    assert torch.equal(flat(model), before)
    assert all(p.grad is None for p in model.parameters())
    assert accumulator.state.nan_detected


@pytest.mark.parametrize("mode", ["standard", "efficient", "selective"])
def test_fixed_modes_keep_n(mode: str) -> None:
    model, accumulator = slope(mode=mode, accumulation_steps=3)
    assert lengths(accumulator, model, 4) == [3, 3, 3, 3]


def test_a_schedule_is_followed_update_by_update_and_its_end_stays() -> None:
    model, accumulator = slope(mode="progressive", accumulation_schedule=[2, 4, 8, 16])
    assert lengths(accumulator, model, 6) == [2, 4, 8, 16, 16, 16]


def test_a_skipped_update_does_not_advance_the_schedule() -> None:
    model, accumulator = slope(mode="progressive", accumulation_schedule=[1, 2, 3])
    applied(model, accumulator, [1.0, 1.0, math.nan])
    assert lengths(accumulator, model, 2) == [2, 3]


def test_progressive_scaling_doubles_to_n() -> None:
    model, accumulator = slope(mode="progressive", progressive_scaling=True, accumulation_steps=6)
    assert lengths(accumulator, model, 5) == [1, 2, 4, 6, 6]


def test_train_spreads_the_doubling_over_the_run() -> None:
    """42 micro-batches are 6 updates each of 1, 2 and 4."""
    model = make_model()
    trainer = trainer_of(
        model, mode="progressive", progressive_scaling=True, accumulation_steps=4, effective_batch_size=2
    )
    data = torch.utils.data.TensorDataset(torch.randn(42, 5), torch.randint(0, 3, (42,)))
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    found: list[int] = []
    hook = trainer.setup.optimizer.register_step_post_hook(
        lambda *_: found.append(trainer.accumulator.state.total_steps)
    )
    trainer.train(loader, num_epochs=2, save_dir=None)
    hook.remove()
    steps = [after - before for before, after in zip([0, *found], found, strict=False)]
    assert trainer.accumulator.state.expected_updates == 18
    assert steps[:10] == [1] * 6 + [2] * 4
    assert steps[-3:] == [4, 4, 1]  # the last window of the epoch is short


def test_expected_updates_count_each_stage_alike() -> None:
    config = GradientAccumulationConfig(accumulation_steps=8)
    assert expected_updates(config, 15 * 10) == 4 * 10
    assert expected_updates(config, 1) == 1


def test_a_loader_without_length_doubles_update_by_update() -> None:
    trainer = trainer_of(make_model(), mode="progressive", progressive_scaling=True)
    trainer.train((batch for batch in [(torch.randn(2, 5), torch.tensor([0, 1]))]), num_epochs=1, save_dir=None)
    assert trainer.accumulator.state.expected_updates is None


@pytest.mark.parametrize(("target", "micro", "expected"), [(64, 16, 4), (65, 16, 5), (8, 16, 1), (256, 3, 86)])
def test_adaptive_mode_without_scaling_fills_the_target(target: int, micro: int, expected: int) -> None:
    _, accumulator = slope(mode="adaptive", effective_batch_size=micro, target_batch_size=target)
    assert accumulator.window_length == expected


def lengths_under_noise(noise: float, **changes: Any) -> list[int]:
    """Window lengths on gradients of 1 plus noise of that size. The learning rate is 0, so the gradient stays."""
    torch.manual_seed(1)
    model = nn.Linear(50, 1, bias=False)
    accumulator = accumulator_of(
        model,
        SGD(model.parameters(), lr=0.0),
        mode="adaptive",
        effective_batch_size=4,
        **({"adaptive_scaling": True, "target_batch_size": 64} | changes),
    )
    found = [0]
    while len(found) < 60:
        found[-1] += 1
        x = torch.ones(1, 50) + noise * torch.randn(1, 50)
        if accumulator.accumulate_gradients(model(x).sum())["should_optimize"]:
            found.append(0)
    return found[:-1]


def test_adaptive_scaling_starts_at_n_and_stays_low_without_noise() -> None:
    found = lengths_under_noise(noise=0.01)
    assert found[0] == 4
    assert set(found[1:]) <= {1, 2}
    assert found.count(1) > found.count(2) > 0


def test_adaptive_scaling_follows_the_noise() -> None:
    """The variance of the noise is 6 times the squared signal: about six micro-batches."""
    found = lengths_under_noise(noise=math.sqrt(6.0))[30:]
    assert 4 <= sum(found) / len(found) <= 8


def test_adaptive_scaling_is_bounded_by_the_target() -> None:
    found = lengths_under_noise(noise=30.0)
    assert max(found) == 16
    assert lengths_under_noise(noise=30.0, target_batch_size=20)[-1] == 5
    assert set(lengths_under_noise(noise=30.0, target_batch_size=4)) == {1}


def test_adaptive_scaling_off_does_not_follow() -> None:
    assert set(lengths_under_noise(noise=0.01, adaptive_scaling=False)) == {16}


@pytest.mark.parametrize("changes", [{"loss_scaling": False}, {"strategy": "adaptive_layers"}])
def test_the_noise_is_measured_before_a_strategy_changes_gradients(changes: dict[str, Any]) -> None:
    found = lengths_under_noise(noise=math.sqrt(6.0), **changes)[30:]
    assert found == lengths_under_noise(noise=math.sqrt(6.0))[30:]


def test_pressure_shrinks_the_micro_batch_and_n_follows() -> None:
    for mode in ("adaptive", "standard"):
        model, accumulator = slope(
            gauge=Dial(0.5, 0.9, 0.9, 0.6),
            mode=mode,
            strategy="memory_aware",
            accumulation_steps=4,
            effective_batch_size=16,
            target_batch_size=64,
        )
        assert lengths(accumulator, model, 4) == [4, 8, 16, 16]
        assert accumulator.micro_batch_size == 4
        assert accumulator.get_accumulation_stats()["effective_batch_size"] == 64


def test_pressure_scales_a_schedule_too() -> None:
    model, accumulator = slope(
        gauge=Dial(0.5, 0.9, 0.6),
        mode="progressive",
        strategy="memory_aware",
        accumulation_schedule=[1, 2, 3],
        effective_batch_size=16,
    )
    assert lengths(accumulator, model, 3) == [1, 4, 6]


def test_a_measured_noise_keeps_its_samples_when_the_micro_batch_shrinks() -> None:
    model, accumulator = slope(
        gauge=Dial(0.5, 0.9, 0.6),
        mode="adaptive",
        adaptive_scaling=True,
        effective_batch_size=16,
        target_batch_size=1600,
    )
    accumulator.noise.squared, accumulator.noise.variance, accumulator.noise.windows = 1.0, 7.0, 1
    assert accumulator.window_length == 7
    applied(model, accumulator, [1.0] * 7)
    scale = accumulator.noise.value
    accumulator.accumulate_gradients(model(1.0))
    assert scale is not None
    assert accumulator.noise.value == pytest.approx(2 * scale)


def test_before_any_noise_a_shrunk_window_aims_at_the_target() -> None:
    config = GradientAccumulationConfig(
        mode="adaptive",  # type: ignore[arg-type]
        adaptive_scaling=True,
        accumulation_steps=2,
        effective_batch_size=8,
        target_batch_size=32,
    )
    assert window_length(config, AccumulationState(micro_batch_size=8), NoiseScale()) == 2
    assert window_length(config, AccumulationState(micro_batch_size=4), NoiseScale()) == 8
