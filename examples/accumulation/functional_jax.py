"""The training loop with JAX, flax and optax. See docs/functional.md. Skipped where they are not installed."""

import sys
from collections.abc import Iterator

import numpy as np

from onyx.accumulation.functional import DynamicLossScaler, GradientAccumulator, GradientAccumulatorConfig

try:
    import jax
    import optax
    from flax import nnx
except ImportError as missing:
    print(f"functional_jax: skipped, {missing.name} is not installed")
    sys.exit(0)


@nnx.jit
def scaled_gradients(model: nnx.Linear, images: jax.Array, scale: float) -> tuple[jax.Array, nnx.State]:
    """The scale is an argument, because a compiled function keeps the number that it was traced with."""

    def scaled_loss(model: nnx.Linear) -> tuple[jax.Array, jax.Array]:
        loss = ((model(images) - 2) ** 2).mean()
        return loss * scale, loss

    (_, loss), grads = nnx.value_and_grad(scaled_loss, has_aux=True)(model)
    return loss, grads


@nnx.jit
def apply_gradients(model: nnx.Linear, optimizer: nnx.Optimizer, grads: nnx.State) -> None:
    optimizer.update(model, grads)


def micro_batches() -> Iterator[np.ndarray]:
    yield from np.random.default_rng(0).normal(size=(10, 4, 5)).astype(np.float32)


def train(model: nnx.Linear, epochs: int = 10, accumulation_steps: int = 4) -> int:
    """Accumulation and loss scaling together. Returns the number of updates."""
    optimizer = nnx.Optimizer(model, optax.adam(5e-2), wrt=nnx.Param)
    accumulator = GradientAccumulator(GradientAccumulatorConfig(accumulation_steps=accumulation_steps))
    scaler = DynamicLossScaler()
    global_step = updates = 0

    def update() -> int:
        grads = accumulator.get_gradients()
        overflow = scaler.check_overflow(grads)
        scaler.update_scale(overflow)
        if not overflow:
            apply_gradients(model, optimizer, grads)
        return int(not overflow)

    for _ in range(epochs):
        for images in micro_batches():
            _, scaled = scaled_gradients(model, images, scaler.scale)
            accumulator.accumulate(scaler.unscale_gradients(scaled))
            global_step += 1
            if accumulator.should_update(global_step):
                updates += update()
        if accumulator.current_step:  # the shorter window at the end of an epoch
            updates += update()
    return updates


def accumulated_equals_the_big_batch(model: nnx.Linear) -> None:
    accumulator = GradientAccumulator(GradientAccumulatorConfig(accumulation_steps=10))
    for images in micro_batches():
        accumulator.accumulate(scaled_gradients(model, images, 1.0)[1])
    big = scaled_gradients(model, np.concatenate(list(micro_batches())), 1.0)[1]
    for found, wanted in zip(jax.tree.leaves(accumulator.get_gradients()), jax.tree.leaves(big), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


if __name__ == "__main__":
    model = nnx.Linear(5, 1, rngs=nnx.Rngs(0))
    batch = next(micro_batches())
    before, _ = scaled_gradients(model, batch, 1.0)
    accumulated_equals_the_big_batch(model)
    assert train(model) == 10 * 3  # ten micro-batches are windows of 4, 4 and 2
    after, _ = scaled_gradients(model, batch, 1.0)
    assert after < before / 2
    print("functional_jax: all examples hold")
