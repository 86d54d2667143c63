"""Accumulator, adaptive accumulator and trainer of document 002. See docs/ads.md."""

import asyncio
import logging

import torch
from torch import nn

from onyx.server.features.ads.gradient_accumulation import (
    AdaptiveGradientAccumulator,
    GradientAccumulationAPI,
    GradientAccumulationConfig,
    GradientAccumulationTrainer,
    GradientAccumulator,
    adjust_learning_rate,
    calculate_accumulation_steps,
    calculate_effective_batch_size,
    gradient_accumulation_context,
)

torch.manual_seed(0)
LOADER = [(torch.randn(8, 16), torch.randn(8, 1)) for _ in range(10)]
criterion = nn.MSELoss()


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))


def basic() -> None:
    """One call per batch; every fourth steps the optimizer. `flush` applies the shorter window at the end."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    accumulator = GradientAccumulator(GradientAccumulationConfig(accumulation_steps=4, target_batch_size=32))
    updated_at = []
    with gradient_accumulation_context(accumulator):
        for index, (x, y) in enumerate(LOADER):
            stats = accumulator.accumulate_gradients(criterion(model(x), y), model, optimizer)
            if stats["should_update"]:
                updated_at.append(index)
        accumulator.flush(model, optimizer)
    assert updated_at == [3, 7]
    totals = accumulator.get_accumulation_stats()
    assert totals["current_step"] == 3
    print(f"average gradient norm {totals['avg_gradient_norm']:.4f}, memory {totals['avg_memory_usage_gb']:.2f} GB")


def unequal_batches() -> None:
    """A weight per batch makes batches of unequal size exact. The loss is the mean over `weight` samples."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accumulator = GradientAccumulator(GradientAccumulationConfig(accumulation_steps=2))
    x, y = LOADER[0]
    accumulator.accumulate_gradients(criterion(model(x[:5]), y[:5]), model, optimizer, weight=5)
    stats = accumulator.accumulate_gradients(criterion(model(x[5:]), y[5:]), model, optimizer, weight=3)
    assert stats["total_samples"] == 8


def growing_windows() -> None:
    """Over the first 100 updates the window grows from 1 to 8."""
    config = GradientAccumulationConfig(
        accumulation_steps=8, target_batch_size=64, warmup_steps=100, accumulation_scheduler="linear"
    )
    lengths = [config.schedule().length(update) for update in (0, 50, 100)]
    assert lengths == [1, 4, 8]


def adaptive() -> None:
    """The planner chooses the batch size, and N follows from the target. Without GPUs it plans for the CPU."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    accumulator = AdaptiveGradientAccumulator(GradientAccumulationConfig(target_batch_size=64))
    accumulator.update_config(model, list(range(torch.accelerator.device_count())) or [0])
    for x, y in LOADER:
        accumulator.accumulate_gradients(criterion(model(x), y), model, optimizer)
    assert accumulator.config.effective_batch_size is not None
    assert accumulator.config.effective_batch_size >= 64


def mixed_precision() -> None:
    """With the scaler of `torch.amp`, on an accelerator if there is one."""
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    model = make_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device.type, enabled=device.type != "cpu")
    accumulator = GradientAccumulator(GradientAccumulationConfig(accumulation_steps=5, mixed_precision=True))
    for x, y in LOADER:
        with torch.autocast(device.type, dtype=torch.float16, enabled=scaler.is_enabled()):
            loss = criterion(model(x.to(device)), y.to(device))
        accumulator.accumulate_gradients(loss, model, optimizer, scaler)
    assert accumulator.current_step == 2


async def train_epochs() -> None:
    """Each epoch runs in a thread, so that the event loop of a service stays free."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    trainer = GradientAccumulationTrainer(GradientAccumulationConfig(accumulation_steps=4, gradient_scaling=False))
    trainer.setup_training(model, optimizer, gpu_ids=[])
    losses = [(await trainer.train_epoch(model, LOADER, optimizer, criterion, epoch))["loss"] for epoch in range(3)]
    assert losses[-1] < losses[0]


def several_trainings() -> None:
    """One accumulator per training id."""
    api = GradientAccumulationAPI()
    training_id = api.create_accumulator(GradientAccumulationConfig(), "my-training")
    assert api.get_accumulation_stats(training_id)["accumulation_steps"] == 4
    api.update_config(training_id, GradientAccumulationConfig(accumulation_steps=8))
    api.cleanup_all()


def formulas() -> None:
    """The document's formulas. Jobs use the learning rate as it is given; see docs/ads.md."""
    assert calculate_effective_batch_size(8, 4) == 32
    assert calculate_accumulation_steps(32, 8) == 4
    assert adjust_learning_rate(0.001, 4) == 0.00025
    assert adjust_learning_rate(5e-5, 4, rule="sqrt") == 1e-4


if __name__ == "__main__":
    logging.getLogger("onyx.server.features.ads.gradient_accumulation").setLevel(logging.DEBUG)
    basic()
    unequal_batches()
    growing_windows()
    adaptive()
    mixed_precision()
    asyncio.run(train_epochs())
    several_trainings()
    formulas()
