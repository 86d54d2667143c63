from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from onyx.accumulation.loss_scaler import DynamicLossScaler
from onyx.accumulation.precision import Precision
from onyx.accumulation.system import GradientAccumulationTrainer, GradientAccumulator
from tests.accumulation.exact import make_model
from tests.accumulation.system.common import CPU, config_of


def setup(**changes: Any) -> GradientAccumulator:
    model = nn.Linear(2, 1)
    parts: dict[str, Any] = {
        "model": model,
        "optimizer": SGD(model.parameters(), lr=0.1),
        "criterion": nn.MSELoss(),
    }
    accumulator = GradientAccumulator(changes.pop("config", config_of()))
    accumulator.setup_training(**(parts | changes))
    return accumulator


@pytest.mark.parametrize("owner", [GradientAccumulator, GradientAccumulationTrainer])
def test_the_parts_can_be_read_back(owner: type[GradientAccumulator | GradientAccumulationTrainer]) -> None:
    model, criterion = make_model(), nn.CrossEntropyLoss()
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = LambdaLR(optimizer, lambda _: 1.0)
    owned = owner(config_of())
    assert (owned.model, owned.optimizer, owned.criterion, owned.scheduler, owned.device) == (None,) * 5
    owned.setup_training(model, optimizer, criterion, scheduler)
    assert (owned.model, owned.optimizer, owned.criterion) == (model, optimizer, criterion)
    assert (owned.scheduler, owned.device) == (scheduler, CPU)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", None),
        ("model", "gpt2"),
        ("optimizer", None),
        ("optimizer", SGD),
        ("criterion", None),
        ("criterion", nn.MSELoss(reduction="none")),
        ("scheduler", 3),
        ("device", "gpu"),
        ("device", 1.5),
        ("precision", "fp8"),
        ("precision", None),
        ("scaler", 65536.0),
    ],
)
def test_wrong_parts_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must"):
        setup(**{name: value})


def test_a_scheduler_that_needs_a_metric_is_refused() -> None:
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"step\(\) without arguments"):
        setup(model=model, optimizer=optimizer, scheduler=ReduceLROnPlateau(optimizer))


def test_old_gradients_are_not_part_of_the_first_window() -> None:
    model = nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    setup(model=model, optimizer=SGD(model.parameters(), lr=0.1))
    assert model.weight.grad is None


def test_float32_needs_no_scaler_and_a_given_one_is_used() -> None:
    assert setup().scaler is None
    scaler = torch.amp.GradScaler("cpu")
    assert setup(scaler=scaler).scaler is scaler
    dynamic = DynamicLossScaler()
    assert setup(scaler=dynamic).scaler is dynamic


def test_half_precision_is_the_cores_decision() -> None:
    """On the CPU float16 comes to float32, which needs no scaler."""
    accumulator = setup(precision="fp16", device="cpu")
    assert accumulator.setup.precision is Precision.FLOAT32
    assert accumulator.scaler is None


def test_gradient_scaling_makes_a_scaler_where_float16_runs() -> None:
    """The meta device stands for one that runs float16: nothing is computed there."""
    scaler = setup(precision=Precision.FP16, device="meta").scaler
    assert isinstance(scaler, torch.amp.GradScaler)
    assert setup(precision=Precision.FP16, device="meta", config=config_of(gradient_scaling=False)).scaler is None
    assert setup(precision=Precision.BF16, device="meta").scaler is None


def test_gradient_scaling_off_takes_no_scaler() -> None:
    with pytest.raises(ValueError, match="gradient_scaling=False uses no scaler"):
        setup(config=config_of(gradient_scaling=False), scaler=torch.amp.GradScaler("cpu"))


def test_gradient_scaling_never_moves_the_learning_rate() -> None:
    for scaling in (True, False):
        accumulator = setup(config=config_of(gradient_scaling=scaling, accumulation_steps=8))
        assert accumulator.setup.optimizer.param_groups[0]["lr"] == 0.1
