"""Updates under a loss scaler."""

import math

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR

from onyx.accumulation.loss_scaler import DynamicLossScaler, DynamicLossScalerConfig
from onyx.accumulation.system import GradientAccumulationTrainer, GradientAccumulator
from tests.accumulation.exact import difference, flat, make_batches, make_model, mean_loss
from tests.accumulation.system.common import Dial, Slope, config_of, slope


@pytest.mark.parametrize("kind", ["torch", "dynamic"])
@pytest.mark.parametrize("nan_handling", [True, False])
def test_an_injected_inf_skips_exactly_one_update(kind: str, nan_handling: bool) -> None:
    """An overflow is a scaler's daily work, so it skips even when NaNs are not handled."""
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
def test_a_disabled_scaler_protects_from_nothing(nan_handling: bool) -> None:
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


def test_what_the_caller_differentiated_unscaled_is_not_unscaled() -> None:
    model, accumulator = slope(accumulation_steps=2)
    scaler = torch.amp.GradScaler("cpu")
    accumulator.scaler = scaler
    for value in (1.0, 3.0):
        loss = model(value)
        loss.backward()
        accumulator.accumulate_gradients(loss, backward=False)
    assert model.weight.item() == pytest.approx(-2.0)
    assert scaler.get_scale() == 2.0**16


def test_the_noise_is_measured_on_unscaled_gradients() -> None:
    values = []
    for scaler in (None, torch.amp.GradScaler("cpu")):
        model, accumulator = slope(mode="adaptive", adaptive_scaling=True, accumulation_steps=2)
        accumulator.scaler = scaler
        for value in (1.0, 3.0):
            accumulator.accumulate_gradients(model(value))
        values.append(accumulator.noise.value)
    assert values[1] == pytest.approx(values[0])


def test_a_nan_is_seen_before_anything_is_applied() -> None:
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
