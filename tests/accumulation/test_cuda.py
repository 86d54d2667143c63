"""Tests that need a GPU; docs/architecture.md lists them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from onyx.accumulation import engine, system
from onyx.accumulation.ads import GradientAccumulationConfig, GradientAccumulator
from onyx.accumulation.gauge import read_gauge

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

Take = Callable[[torch.Tensor], Any]


def engine_interface(model: nn.Module, optimizer: AdamW) -> Take:
    accumulator = engine.GradientAccumulator(optimizer, accumulation_steps=100)
    return lambda loss: accumulator.accumulate(loss, model)


def ads_interface(model: nn.Module, optimizer: AdamW) -> Take:
    accumulator = GradientAccumulator(GradientAccumulationConfig(accumulation_steps=100))
    weight = torch.tensor(3.0, device="cuda")
    return lambda loss: accumulator.accumulate_gradients(loss, model, optimizer, weight=weight)


def system_interface(model: nn.Module, optimizer: AdamW) -> Take:
    accumulator = system.GradientAccumulator(
        system.GradientAccumulationConfig(accumulation_steps=100, memory_monitoring=False)
    )
    accumulator.setup_training(model, optimizer, nn.MSELoss())
    return accumulator.accumulate_gradients


@pytest.mark.parametrize("make", [engine_interface, ads_interface, system_interface])
def test_a_window_never_waits_for_the_device(make: Callable[[nn.Module, AdamW], Take]) -> None:
    model = nn.Linear(8, 8, device="cuda")
    take = make(model, AdamW(model.parameters()))
    take(model(torch.randn(2, 8, device="cuda")).sum())
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            take(model(torch.ones(2, 8, device="cuda")).sum())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert model.weight.grad is not None


def test_float16_trains_with_the_accumulators_own_scaler() -> None:
    model = nn.Linear(8, 8, device="cuda")
    optimizer = AdamW(model.parameters(), lr=1e-2)
    accumulator = GradientAccumulator(GradientAccumulationConfig(accumulation_steps=2, amp_init_scale=1024.0))
    x = torch.randn(16, 8, device="cuda")
    losses = []
    for _ in range(40):
        with accumulator.mixed.autocast():
            loss = (model(x) - x).pow(2).mean()
        losses.append(loss.item())
        report = accumulator.accumulate_gradients(loss, model, optimizer)
    assert losses[-1] < losses[0]
    assert report["mp_stats"]["scaler_enabled"] is True
    assert report["backward_stats"]["scaler_scale"] >= 1024.0


def test_the_gauge_reads_the_whole_device() -> None:
    gauge = read_gauge(torch.device("cuda", 0))
    assert gauge.total == torch.cuda.get_device_properties(0).total_memory
    assert 0 < gauge.pressure < 1
