"""The functional accumulator and the loss scaler with torch and NumPy. See docs/functional.md."""

from collections.abc import Iterator

import numpy as np
import torch

from onyx.accumulation.functional import (
    DynamicLossScaler,
    DynamicLossScalerConfig,
    GradientAccumulator,
    GradientAccumulatorConfig,
)

Weights = dict[str, torch.Tensor]


def basic_usage() -> None:
    """Four micro-batches, one mean. Arrays can be nested in any way; None stays None."""
    accumulator = GradientAccumulator(GradientAccumulatorConfig(accumulation_steps=4, normalize_gradients=True))
    for step in range(1, 5):
        accumulator.accumulate({"layer": [np.full(2, float(step)), None]})
        assert accumulator.should_update(step) == (step == 4)
    mean = accumulator.get_gradients()
    assert mean["layer"][0].tolist() == [2.5, 2.5]
    assert mean["layer"][1] is None


def loss_of(weights: Weights, x: torch.Tensor) -> torch.Tensor:
    """A small regression whose target is always 2."""
    return ((x @ weights["hidden"]).tanh() @ weights["out"] - 2).square().mean()


def new_weights() -> Weights:
    torch.manual_seed(0)
    return {"hidden": torch.randn(5, 8), "out": torch.randn(8, 1)}


def micro_batches(count: int = 10, size: int = 4) -> Iterator[torch.Tensor]:
    yield from torch.randn(count, size, 5, generator=torch.Generator().manual_seed(1))


def descend(weights: Weights, grads: Weights, lr: float = 0.05) -> None:
    for name, grad in grads.items():
        weights[name] -= lr * grad


def training_loop(epochs: int = 20) -> None:
    """Accumulate, update when the window is full, and apply the shorter window that ends an epoch."""
    weights, step = new_weights(), 0
    accumulator = GradientAccumulator(GradientAccumulatorConfig(accumulation_steps=4))
    before = loss_of(weights, torch.cat(list(micro_batches())))
    for _ in range(epochs):
        for batch in micro_batches():
            accumulator.accumulate(torch.func.grad(loss_of)(weights, batch))
            step += 1
            if accumulator.should_update(step):
                descend(weights, accumulator.get_gradients())
        if accumulator.current_step:  # 10 = 4 + 4 + 2: the last two are a mean over two, not half an update
            descend(weights, accumulator.get_gradients())
    assert loss_of(weights, torch.cat(list(micro_batches()))) < before / 2


def loss_scaling() -> None:
    """Differentiate the scaled loss, then unscale. Without the first step gradients are 32768 times too small."""
    weights, scaler = new_weights(), DynamicLossScaler(DynamicLossScalerConfig(growth_interval=2))
    for batch in micro_batches(count=3):
        scaled = torch.func.grad(lambda now, x: scaler.scale_loss(loss_of(now, x)))(weights, batch)
        grads = scaler.unscale_gradients(scaled)
        assert torch.allclose(grads["out"], torch.func.grad(loss_of)(weights, batch)["out"])
        overflow = scaler.check_overflow(grads)
        scaler.update_scale(overflow)
        if not overflow:
            descend(weights, grads)
    assert scaler.scale == 2.0**16  # grew after two updates without overflow
    scaler.update_scale(True)
    assert scaler.scale == 2.0**15  # and backs off after one with


def half_precision_needs_it() -> None:
    """A gradient of 1e-8 does not exist in float16; scaled it does, and it comes back in float32."""
    weight = torch.ones(1, dtype=torch.float16, requires_grad=True)
    scaler = DynamicLossScaler()

    def tiny_loss() -> torch.Tensor:
        return (weight.float() * 1e-8).sum()

    (lost,) = torch.autograd.grad(tiny_loss(), weight)
    (scaled,) = torch.autograd.grad(scaler.scale_loss(tiny_loss()), weight)
    assert lost.item() == 0
    assert abs(scaler.unscale_gradients(scaled).item() - 1e-8) < 1e-11


def both_combined() -> None:
    """Unscale each micro-batch, accumulate, and check for overflow once per window."""
    weights, skipped = new_weights(), 0
    scaler, accumulator = DynamicLossScaler(), GradientAccumulator(GradientAccumulatorConfig(accumulation_steps=2))
    for step, batch in enumerate(micro_batches(count=6), start=1):
        if step == 3:
            batch[0, 0] = float("inf")  # one bad sample skips the second window and no other
        scaled = torch.func.grad(lambda now, x: scaler.scale_loss(loss_of(now, x)))(weights, batch)
        accumulator.accumulate(scaler.unscale_gradients(scaled))
        if accumulator.should_update(step):
            grads = accumulator.get_gradients()
            overflow = scaler.check_overflow(grads)
            scaler.update_scale(overflow)
            skipped += overflow
            if not overflow:
                descend(weights, grads)
    assert skipped == 1
    assert not scaler.check_overflow(weights)


def stop_and_continue() -> None:
    """The state includes an open window."""
    accumulator = GradientAccumulator(GradientAccumulatorConfig(accumulation_steps=2))
    accumulator.accumulate([torch.tensor([1.0])])
    later = GradientAccumulator(accumulator.config)
    later.load_state_dict(accumulator.state_dict())
    later.accumulate([torch.tensor([3.0])])
    assert later.get_gradients()[0].item() == 2.0


if __name__ == "__main__":
    for example in (
        basic_usage,
        training_loop,
        loss_scaling,
        half_precision_needs_it,
        both_combined,
        stop_and_continue,
    ):
        example()
    print("functional: all examples hold")
