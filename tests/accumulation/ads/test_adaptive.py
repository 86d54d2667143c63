import math
from collections.abc import Sequence

import pytest
import torch
from torch import nn
from torch.optim import SGD

from onyx.accumulation.ads.adaptive import AdaptiveGradientAccumulator
from onyx.accumulation.ads.config import GradientAccumulationConfig


class FourGpus:
    """A planner on a host with four GPUs that take 6 samples each, the CPU 3."""

    def gpus(self) -> list[int]:
        return [0, 1, 2, 3]

    def batch_size(self, model: nn.Module, gpu_ids: Sequence[int] | None, config: GradientAccumulationConfig) -> int:
        return 3 if gpu_ids is None else round(6 * config.max_memory_usage / 0.9)


class NoGpus(FourGpus):
    def gpus(self) -> list[int]:
        return []


class OnGpus(AdaptiveGradientAccumulator):
    planner = FourGpus()


class OnCpu(AdaptiveGradientAccumulator):
    planner = NoGpus()


MODEL = nn.Linear(2, 2)


def test_the_planner_decides_within_the_bounds() -> None:
    assert OnGpus(GradientAccumulationConfig()).calculate_optimal_batch_size(MODEL, [0, 1]) == 6
    tight = GradientAccumulationConfig(max_memory_usage=0.45)
    assert OnGpus(tight).calculate_optimal_batch_size(MODEL, [0]) == 3


def test_without_adjustment_it_is_the_target_or_8() -> None:
    fixed = GradientAccumulationConfig(auto_adjust_batch_size=False, target_batch_size=16)
    assert OnCpu(fixed).calculate_optimal_batch_size(MODEL, [0]) == 16
    assert OnCpu(GradientAccumulationConfig(auto_adjust_batch_size=False)).calculate_optimal_batch_size(MODEL, []) == 8


@pytest.mark.parametrize("gpu_ids", [[], [7], [0, 9]])
def test_unknown_gpus_are_an_error_that_names_the_existing_ones(gpu_ids: list[int]) -> None:
    with pytest.raises(ValueError, match=r"No valid GPUs found .*this host has: 0, 1, 2, 3"):
        OnGpus(GradientAccumulationConfig()).calculate_optimal_batch_size(MODEL, gpu_ids)


def test_steps_reach_the_target() -> None:
    acc = OnGpus(GradientAccumulationConfig())
    assert acc.adjust_accumulation_steps(64, 6) == 11
    assert acc.adjust_accumulation_steps(4, 8) == 1
    assert acc.adjust_accumulation_steps(64, 0) == 4  # keeps N
    with pytest.raises(ValueError, match="target batch size must be >= 1"):
        acc.adjust_accumulation_steps(0, 8)


def test_update_config_picks_batch_then_steps_from_the_next_window_on() -> None:
    acc = OnGpus(GradientAccumulationConfig(target_batch_size=64))
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters())
    acc.accumulate_gradients(model(torch.ones(1, 2)).sum(), model, optimizer)
    acc.update_config(model, [0, 1, 2, 3])
    assert acc.config.accumulation_steps == math.ceil(64 / 6)
    assert acc.config.effective_batch_size == 66
    fired = [
        acc.accumulate_gradients(model(torch.ones(1, 2)).sum(), model, optimizer)["should_update"] for _ in range(14)
    ]
    assert [i for i, fire in enumerate(fired) if fire] == [2, 13]


def test_without_gpus_update_config_plans_for_the_cpu_and_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    acc = OnCpu(GradientAccumulationConfig(target_batch_size=12))
    acc.update_config(MODEL, [0, 1])
    assert acc.config.effective_batch_size == 12
    assert acc.config.accumulation_steps == 4
    assert "planning for the CPU" in caplog.text


def test_without_a_target_n_stays() -> None:
    acc = OnGpus(GradientAccumulationConfig(accumulation_steps=5))
    acc.update_config(MODEL, [0])
    assert (acc.config.accumulation_steps, acc.config.effective_batch_size) == (5, 30)


def test_without_a_planner_it_is_the_target_or_the_default() -> None:
    acc = AdaptiveGradientAccumulator(GradientAccumulationConfig(target_batch_size=16))
    if not torch.accelerator.is_available():
        acc.update_config(MODEL, [0])
        assert acc.config.effective_batch_size == 16
