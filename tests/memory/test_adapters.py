import pytest
import torch
from torch import nn
from torch.optim import AdamW

from onyx.accumulation import system
from onyx.accumulation.gauge import Gauge
from onyx.memory.planning.module_batch import infer_sample, module_footprint
from onyx.server.features.ads.gradient_accumulation import AdaptiveGradientAccumulator, GradientAccumulationConfig

MODEL = nn.Sequential(nn.Linear(256, 4096), nn.ReLU(), nn.Linear(4096, 256))


class PlannedMicroBatch:
    """The micro-batch that keeps a device below a threshold, known before it runs."""

    def __init__(self, model: nn.Module) -> None:
        self._footprint = module_footprint(model, infer_sample(model, None))

    def __call__(self, *, current: int, largest: int, gauge: Gauge, threshold: float) -> int:
        """From 1 to `largest`: what is left of the device below the threshold, without what others use."""
        free = threshold * gauge.total - (gauge.used - gauge.own)
        return max(1, min(largest, int(self._footprint.most_samples(free, 1))))


def test_the_adaptive_accumulator_uses_the_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    sizes = {}
    for memory in ("1GB", "4GB"):
        monkeypatch.setenv("ONYX_CPU_MEMORY", memory)
        accumulator = AdaptiveGradientAccumulator(GradientAccumulationConfig(target_batch_size=1_000_000))
        accumulator.update_config(MODEL, [0])
        assert accumulator.config.effective_batch_size is not None
        assert accumulator.config.effective_batch_size >= 1_000_000
        sizes[memory] = accumulator.config.effective_batch_size // accumulator.config.accumulation_steps
    assert 2 < sizes["4GB"] / sizes["1GB"] < 8


def test_bounds_of_the_config_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("ONYX_CPU_MEMORY", "2GB")
    steps = []
    for usage in (0.9, 0.45):
        config = GradientAccumulationConfig(target_batch_size=1_000_000, max_memory_usage=usage)
        AdaptiveGradientAccumulator(config).update_config(MODEL, [])
        steps.append(config.accumulation_steps)
    assert steps[1] > steps[0]


def test_unknown_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ValueError, match="No valid GPUs found"):
        AdaptiveGradientAccumulator(GradientAccumulationConfig()).calculate_optimal_batch_size(MODEL, [0])


def test_a_planned_micro_batch_stays_below_the_threshold() -> None:
    choose = PlannedMicroBatch(MODEL)
    total = 1 << 30
    small = choose(current=64, largest=1 << 20, gauge=Gauge(own=0, used=total // 2, total=total), threshold=0.8)
    large = choose(current=64, largest=1 << 20, gauge=Gauge(own=0, used=0, total=total), threshold=0.8)
    assert 1 < small < large < 1 << 20
    assert choose(current=64, largest=64, gauge=Gauge(own=0, used=0, total=total), threshold=0.8) == 64
    assert choose(current=64, largest=64, gauge=Gauge(own=0, used=total, total=total), threshold=0.8) == 1


def test_document_004_takes_the_planner_as_its_chooser() -> None:
    """A device with room for a few samples only: the first window already runs at a micro-batch that fits."""
    config = system.GradientAccumulationConfig(strategy="memory_aware", effective_batch_size=4096)  # type: ignore[arg-type]
    tight = Gauge(own=0, used=0, total=96 << 20)
    accumulator = system.GradientAccumulator(
        config, gauge=lambda device: tight, choose_micro_batch=PlannedMicroBatch(MODEL)
    )
    accumulator.setup_training(MODEL, AdamW(MODEL.parameters()), nn.MSELoss())
    accumulator.accumulate_gradients(MODEL(torch.ones(2, 256)).pow(2).mean())
    assert 1 <= accumulator.micro_batch_size < 4096
