import math

import pytest
import torch
from torch import nn

from onyx.accumulation.system.noise import Adaptive, MicroNorms, NoiseScale
from tests.accumulation.system.common import slope


def test_it_finds_a_known_noise_scale() -> None:
    """Gradients of micro-batches are truth + noise; the noise scale is the ratio of their variances."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.ones(200, dtype=torch.float64)
    noise = NoiseScale(smoothing=0.98)
    for _ in range(400):
        micro = truth + 2.0 * torch.randn(8, 200, generator=generator, dtype=torch.float64)
        noise.observe(8, float(micro.pow(2).sum(1).mean()), float(micro.mean(0).pow(2).sum()))
    assert noise.value == pytest.approx(4.0, rel=0.1)


def test_equal_micro_batches_have_no_noise() -> None:
    noise = NoiseScale()
    noise.observe(4, small=2.0, big=2.0)
    assert noise.value == 0.0


def test_pure_noise_is_infinite() -> None:
    noise = NoiseScale()
    noise.observe(4, small=4.0, big=1.0)
    assert noise.value == math.inf


def test_one_micro_batch_or_a_nan_gives_no_estimate() -> None:
    noise = NoiseScale()
    noise.observe(1, 2.0, 1.0)
    noise.observe(4, math.nan, 1.0)
    assert noise.value is None


def test_adaptive_goes_up_and_down_within_its_bounds() -> None:
    noise = NoiseScale(smoothing=0.01)
    schedule = Adaptive(noise, start=4, most=16)
    assert schedule.length(0) == 4
    noise.observe(4, small=100.0, big=26.0)
    assert schedule.length(1) == 16
    noise.observe(4, small=10.0, big=5.0)
    assert 1 < schedule.length(2) < 16
    noise.observe(4, small=1.0, big=1.0)
    assert schedule.length(3) == 1


def test_adaptive_takes_every_eighth_window_longer_at_n_1() -> None:
    noise = NoiseScale()
    noise.observe(2, small=1.0, big=1.0)
    found = [Adaptive(noise, start=2, most=4).length(update) for update in range(9)]
    assert found == [2, 1, 1, 1, 1, 1, 1, 1, 2]
    assert Adaptive(noise, start=2, most=1).length(0) == 1


def test_micro_norms_see_each_gradient_before_it_is_summed() -> None:
    layer = nn.Linear(3, 2)
    norms = MicroNorms(layer.parameters())
    own = []
    for factor in (0.5, 0.25):
        x = torch.randn(4, 3)
        grads = torch.autograd.grad(layer(x).pow(2).sum(), list(layer.parameters()))
        own.append(sum(float(grad.pow(2).sum()) for grad in grads))
        norms.take()  # autograd.grad ran the hooks too
        (layer(x).pow(2).sum() * factor).backward()
        norms.end_micro_batch(factor)
        count, mean = norms.take()
        assert count == 1
        assert mean == pytest.approx(own[-1], rel=1e-5)
    norms.remove()
    layer(torch.randn(1, 3)).sum().backward()
    assert norms.take() == (0, 0.0)


def test_state_round_trip() -> None:
    noise = NoiseScale()
    noise.observe(4, small=4.0, big=2.0)
    other = NoiseScale()
    other.load_state_dict(noise.state_dict())
    assert other.value == noise.value


@pytest.mark.parametrize("smoothing", [0, 1, -0.1, math.nan, "0.9"])
def test_smoothing_is_a_fraction(smoothing: object) -> None:
    with pytest.raises(ValueError, match="smoothing must be between 0 and 1"):
        NoiseScale(smoothing)  # type: ignore[arg-type]


def test_the_noise_is_measured_on_unscaled_gradients() -> None:
    values = []
    for scaler in (None, torch.amp.GradScaler("cpu")):
        model, accumulator = slope(mode="adaptive", adaptive_scaling=True, accumulation_steps=2)
        accumulator.scaler = scaler
        for value in (1.0, 3.0):
            accumulator.accumulate_gradients(model(value))
        values.append(accumulator.noise.value)
    assert values[1] == pytest.approx(values[0])


def test_the_noise_can_be_measured_on_the_callers_gradients() -> None:
    model, accumulator = slope(mode="adaptive", adaptive_scaling=True, accumulation_steps=2)
    for value in (1.0, 3.0):
        loss = model(value)
        loss.backward()
        accumulator.accumulate_gradients(loss, backward=False)
    # mean of squares 5, square of the mean 4: true square 3, variance 2
    assert accumulator.noise.value == pytest.approx(2 / 3)


def test_the_noise_can_be_measured_on_uneven_windows() -> None:
    """Gradient 3 of one sample, 1 of three: squares 9 and 1 and 2.25 of the mean; so 0.6 and 6.6 / samples."""
    model, accumulator = slope(mode="adaptive", adaptive_scaling=True, accumulation_steps=2)
    for value, weight in ((3.0, 1), (1.0, 3)):
        accumulator.accumulate_gradients(model(value), weight=weight)
    assert accumulator.noise.value == pytest.approx(6.6 / 2 / 0.6)


def test_a_window_without_weight_does_not_change_the_noise() -> None:
    model, accumulator = slope(mode="adaptive", adaptive_scaling=True, accumulation_steps=2)
    for _ in range(2):
        accumulator.accumulate_gradients(model(1.0), weight=0)
    assert accumulator.state.skipped_steps == 1
    assert accumulator.noise.value is None
