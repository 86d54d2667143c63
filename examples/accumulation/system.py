"""Modes, strategies, the trainer and saved state of `onyx.accumulation.system`. See docs/system.md."""

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from onyx.accumulation.gauge import Gauge
from onyx.accumulation.system import (
    AccumulationMode,
    AccumulationStrategy,
    GradientAccumulationConfig,
    GradientAccumulationTrainer,
    GradientAccumulator,
)


def digits(samples: int = 256, batch_size: int = 16) -> DataLoader[tuple[torch.Tensor, ...]]:
    """Noisy images of ten classes, 784 pixels each."""
    generator = torch.Generator().manual_seed(0)
    kinds = torch.randint(0, 10, (samples,), generator=generator)
    pixels = torch.randn(10, 784, generator=generator)[kinds] + torch.randn(samples, 784, generator=generator)
    return DataLoader(TensorDataset(pixels, kinds), batch_size=batch_size, shuffle=True, generator=generator)


def classifier() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))


def modes() -> None:
    """The mode decides how many micro-batches a window takes."""
    standard = GradientAccumulationConfig(
        mode=AccumulationMode.STANDARD, accumulation_steps=4, effective_batch_size=16, target_batch_size=64
    )
    efficient = GradientAccumulationConfig(
        mode=AccumulationMode.EFFICIENT, accumulation_steps=8, memory_threshold=0.8, memory_monitoring=True
    )
    adaptive = GradientAccumulationConfig(
        mode=AccumulationMode.ADAPTIVE, adaptive_scaling=True, memory_threshold=0.7, progressive_scaling=True
    )
    progressive = GradientAccumulationConfig(
        mode=AccumulationMode.PROGRESSIVE,
        progressive_scaling=True,
        accumulation_schedule=[2, 4, 8, 16],
        gradient_scaling=True,
    )
    selective = GradientAccumulationConfig(
        mode=AccumulationMode.SELECTIVE,
        selective_accumulation=True,
        layer_accumulation_weights={"0.weight": 1.0, "2.weight": 0.5, "2.bias": 0.0},
    )
    first_windows = [
        GradientAccumulator(config).window_length for config in (standard, efficient, adaptive, progressive, selective)
    ]
    assert first_windows == [4, 8, 4, 2, 4]

    model = classifier()
    bias = model.get_parameter("2.bias").clone()
    trainer = GradientAccumulationTrainer(selective)
    trainer.setup_training(model, torch.optim.AdamW(model.parameters()), nn.CrossEntropyLoss())
    trainer.train_epoch(digits())
    assert torch.equal(model.get_parameter("2.bias"), bias)  # weight 0: weight decay does not move it either


def strategies() -> None:
    """The strategy changes gradients before clipping. Measured here: how far the first update moves each layer."""
    model = classifier()
    batch = next(iter(digits()))

    def moved(config: GradientAccumulationConfig) -> list[float]:
        fresh = classifier()
        optimizer = torch.optim.SGD(
            [{"params": fresh[0].parameters()}, {"params": fresh[2].parameters()}],  # type: ignore[index]
            lr=1.0,
        )
        trainer = GradientAccumulationTrainer(config)
        trainer.setup_training(fresh, optimizer, nn.CrossEntropyLoss())
        trainer.train_step(*batch)
        return [
            float((fresh.get_parameter(name) - model.get_parameter(name)).detach().norm())
            for name in ("0.weight", "2.weight")
        ]

    def config(strategy: AccumulationStrategy, **settings: object) -> GradientAccumulationConfig:
        return GradientAccumulationConfig(
            strategy=strategy,
            accumulation_steps=1,
            gradient_clipping=False,
            **settings,  # type: ignore[arg-type]
        )

    first, second = moved(config(AccumulationStrategy.UNIFORM))
    weights = {"0.weight": 1.0, "2.weight": 0.4}
    by_layer = moved(config(AccumulationStrategy.LAYER_WISE, layer_accumulation_weights=weights))
    groups = {"group_0": 0.5, "group_1": 0.25}
    by_group = moved(config(AccumulationStrategy.PARAMETER_GROUPS, parameter_group_weights=groups))
    by_norm = moved(config(AccumulationStrategy.ADAPTIVE_LAYERS))
    by_memory = moved(config(AccumulationStrategy.MEMORY_AWARE, memory_threshold=0.99))
    near = torch.testing.assert_close
    near(by_layer, [first, 0.4 * second], rtol=1e-4, atol=1e-6)
    near(by_group, [0.5 * first, 0.25 * second], rtol=1e-4, atol=1e-6)
    near(by_norm, [min(first, 1.0), min(second, 1.0)], rtol=1e-4, atol=1e-6)
    near(by_memory, [first, second], rtol=1e-4, atol=1e-6)


def basic() -> None:
    """Four micro-batches of 16 make an update of 64 samples."""
    config = GradientAccumulationConfig(
        accumulation_steps=4,
        mode=AccumulationMode.STANDARD,
        strategy=AccumulationStrategy.UNIFORM,
        effective_batch_size=16,
        target_batch_size=64,
        gradient_scaling=True,
        loss_scaling=True,
    )
    model = classifier()
    trainer = GradientAccumulationTrainer(config)
    trainer.setup_training(model, torch.optim.Adam(model.parameters(), lr=0.01), nn.CrossEntropyLoss())
    history = trainer.train(digits(), num_epochs=5, save_dir=None)
    assert history[-1]["epoch_loss"] < history[0]["epoch_loss"]
    assert history[0]["optimization_steps"] == 4
    assert history[0]["effective_batch_size"] == 64


def advanced() -> None:
    """Windows by gradient noise and memory pressure, with a scheduler, validation and checkpoints."""
    config = GradientAccumulationConfig(
        accumulation_steps=8,
        mode=AccumulationMode.ADAPTIVE,
        strategy=AccumulationStrategy.MEMORY_AWARE,
        effective_batch_size=32,
        target_batch_size=256,
        memory_threshold=0.8,
        memory_monitoring=True,
        adaptive_scaling=True,
        progressive_scaling=True,
        gradient_clipping=True,
        clipping_norm=1.0,
        nan_handling=True,
    )
    model = classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5)
    trainer = GradientAccumulationTrainer(config)
    trainer.setup_training(model, optimizer, nn.CrossEntropyLoss(), scheduler)
    with tempfile.TemporaryDirectory() as folder:
        trainer.train(digits(batch_size=32), digits(64), num_epochs=3, save_dir=folder)
        assert sorted(path.name for path in Path(folder).iterdir()) == ["epoch_1", "epoch_2", "epoch_3"]
    stats = trainer.get_training_stats()
    updates = stats["accumulation_stats"]["total_optimizer_steps"]
    assert scheduler.last_epoch == updates  # once per update, not per micro-batch and not per epoch
    assert all("val_loss" in entry for entry in stats["training_history"])


def progressive() -> None:
    """Short windows first, longer ones later."""
    config = GradientAccumulationConfig(
        mode=AccumulationMode.PROGRESSIVE,
        strategy=AccumulationStrategy.ADAPTIVE_LAYERS,
        accumulation_schedule=[2, 4, 8, 16, 32],
        progressive_scaling=True,
        adaptive_scaling=True,
        gradient_scaling=True,
        loss_scaling=True,
    )
    model = classifier()
    trainer = GradientAccumulationTrainer(config)
    trainer.setup_training(model, torch.optim.Adam(model.parameters()), nn.CrossEntropyLoss())
    ends = [i for i, batch in enumerate(digits(512), 1) if trainer.train_step(*batch)["should_optimize"]]
    assert ends == [2, 6, 14, 30]


def memory_aware() -> None:
    """Under memory pressure the micro-batch shrinks; the update is still that of 4 × 16 samples."""
    config = GradientAccumulationConfig(
        mode=AccumulationMode.EFFICIENT,
        strategy=AccumulationStrategy.MEMORY_AWARE,
        accumulation_steps=4,
        effective_batch_size=16,
        memory_threshold=0.8,
        memory_monitoring=True,
        gradient_clipping=True,
        clipping_norm=1.0,
        nan_handling=True,
    )
    fills = iter([0.5, 0.9, 0.6, 0.6])
    trainer = GradientAccumulationTrainer(config, gauge=lambda _: Gauge(own=0, used=int(next(fills) * 100), total=100))
    model = classifier()
    trainer.setup_training(model, torch.optim.Adam(model.parameters()), nn.CrossEntropyLoss())
    result = trainer.train_epoch(digits())
    stats = trainer.accumulator.get_accumulation_stats()
    assert result["optimization_steps"] == 4
    assert trainer.accumulator.micro_batch_size == 8
    assert stats["current_step"] == 4 + 3 * 8
    assert stats["effective_batch_size"] == 64
    assert stats["memory_usage"] == 0.6


def state_management() -> None:
    """Stop in the middle of a window and continue in another accumulator: the same bits."""
    config = GradientAccumulationConfig(accumulation_steps=4)
    batches = list(digits())[:8]
    criterion = nn.CrossEntropyLoss()

    def start() -> tuple[nn.Module, GradientAccumulator]:
        model = classifier()
        accumulator = GradientAccumulator(config)
        accumulator.setup_training(model, torch.optim.SGD(model.parameters(), lr=0.1), criterion)
        return model, accumulator

    straight, accumulator = start()
    for pixels, kinds in batches:
        accumulator.accumulate_gradients(criterion(straight(pixels), kinds))

    with tempfile.TemporaryDirectory() as folder:
        model, accumulator = start()
        for pixels, kinds in batches[:2]:
            accumulator.accumulate_gradients(criterion(model(pixels), kinds))
        accumulator.save_accumulation_state(f"{folder}/accumulation.safetensors")

        model, accumulator = start()
        accumulator.load_accumulation_state(f"{folder}/accumulation.safetensors")
        assert accumulator.get_accumulation_stats()["accumulation_step"] == 2
        for pixels, kinds in batches[2:]:
            accumulator.accumulate_gradients(criterion(model(pixels), kinds))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), straight.parameters(), strict=True))


if __name__ == "__main__":
    for example in (modes, strategies, basic, advanced, progressive, memory_aware, state_management):
        example()
        print(f"{example.__name__}: {example.__doc__}")
