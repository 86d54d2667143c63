import pytest
import torch
from torch import nn
from torch.optim import SGD

from onyx.server.features.ads.gradient_accumulation import (
    GradientAccumulationConfig,
    GradientAccumulationTrainer,
    GradientAccumulator,
    gradient_accumulation_context,
    integrate_with_dataparallel,
    integrate_with_distributed,
)


def test_leaving_an_open_window_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters())
    accumulator = GradientAccumulator(GradientAccumulationConfig(accumulation_steps=2))
    with gradient_accumulation_context(accumulator) as inner:
        assert inner is accumulator
        inner.accumulate_gradients(model(torch.ones(1, 1)).sum(), model, optimizer)
    assert "ended inside a window (1 of 2 micro-batches)" in caplog.text
    caplog.clear()
    with gradient_accumulation_context(accumulator):
        accumulator.accumulate_gradients(model(torch.ones(1, 1)).sum(), model, optimizer)
    assert caplog.text == ""


@pytest.mark.parametrize("integrate", [integrate_with_dataparallel, integrate_with_distributed])
def test_a_trainer_gets_an_accumulator(integrate: type) -> None:
    trainer = GradientAccumulationTrainer(GradientAccumulationConfig())
    with pytest.raises(ValueError, match="set it up first"):
        integrate(trainer, GradientAccumulationConfig())
    model = nn.Linear(1, 1)
    trainer.setup_training(model, SGD(model.parameters(), lr=0.1), [])
    assert integrate(trainer, GradientAccumulationConfig(accumulation_steps=7)) is trainer
    assert trainer.accumulator.config.accumulation_steps == 7
