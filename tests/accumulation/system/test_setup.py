import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from onyx.accumulation.loss_scaling import DynamicLossScaler
from onyx.accumulation.precision import Precision
from onyx.accumulation.system import GradientAccumulationTrainer, GradientAccumulator
from tests.accumulation.exact import make_model
from tests.accumulation.system.common import CPU, accumulator_of, config_of


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
def test_the_parts_can_be_read(owner: type[GradientAccumulator | GradientAccumulationTrainer]) -> None:
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


def test_float16_on_the_cpu_becomes_float32() -> None:
    """float32 needs no scaler."""
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


GRADIENTS = {"first": 3.0, "second": 4.0, "third": 0.5}


class Three(nn.Module):
    """Three weights whose gradients are 3, 4 and 0.5."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Parameter(torch.ones(())) for _ in range(3))

    def loss(self) -> torch.Tensor:
        return sum((p * GRADIENTS[name] for name, p in self.named_parameters()), torch.zeros(()))


def groups(model: Three) -> Optimizer:
    return SGD([{"params": [model.first, model.third]}, {"params": [model.second]}], lr=1.0)


def moved(model: Three, accumulator: GradientAccumulator) -> list[float]:
    """How far each weight moved in one update."""
    before = [p.item() for p in model.parameters()]
    while not accumulator.accumulate_gradients(model.loss())["should_optimize"]:
        pass
    return [old - p.item() for old, p in zip(before, model.parameters(), strict=True)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [3.0, 4.0, 0.5]),
        ({"strategy": "memory_aware"}, [3.0, 4.0, 0.5]),
        ({"strategy": "layer_wise", "layer_accumulation_weights": {"first": 0.5, "third": 2.0}}, [1.5, 4.0, 1.0]),
        ({"strategy": "layer_wise", "layer_accumulation_weights": {"second": 0}}, [3.0, 0.0, 0.5]),
        ({"strategy": "parameter_groups", "parameter_group_weights": {"group_0": 0.5}}, [1.5, 4.0, 0.25]),
        (
            {"strategy": "parameter_groups", "parameter_group_weights": {"group_0": 2, "group_1": 0.25}},
            [6.0, 1.0, 1.0],
        ),
        ({"strategy": "adaptive_layers"}, [1.0, 1.0, 0.5]),
        ({"mode": "selective", "layer_accumulation_weights": {"first": 0, "second": 0.5}}, [0.0, 4.0, 0.5]),
        ({"selective_accumulation": True, "layer_accumulation_weights": {"third": 0}}, [3.0, 4.0, 0.0]),
        (
            {"mode": "selective", "strategy": "layer_wise", "layer_accumulation_weights": {"first": 0, "second": 0.5}},
            [0.0, 2.0, 0.5],
        ),
    ],
)
@pytest.mark.parametrize("steps", [1, 3])
def test_what_each_strategy_applies(changes: dict[str, Any], expected: list[float], steps: int) -> None:
    model = Three()
    accumulator = accumulator_of(model, groups(model), accumulation_steps=steps, **changes)
    assert moved(model, accumulator) == pytest.approx(expected)


def test_a_parameter_left_out_is_not_decayed_and_has_no_state() -> None:
    model = Three()
    optimizer = AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    weights = {"first": 0.0}
    accumulator = accumulator_of(model, optimizer, mode="selective", layer_accumulation_weights=weights)
    first, second, _ = moved(model, accumulator)
    assert first == 0.0
    assert second > 0.0
    assert model.first not in optimizer.state


def test_a_nan_in_a_left_out_parameter_does_not_skip_the_update() -> None:
    model = Three()
    weights = {"first": 0.0}
    scaler = torch.amp.GradScaler("cpu")
    accumulator = accumulator_of(
        model, groups(model), mode="selective", layer_accumulation_weights=weights, accumulation_steps=1
    )
    accumulator.scaler = scaler
    accumulator.accumulate_gradients(model.loss() + model.first * float("inf"))
    assert (accumulator.state.optimizer_steps, accumulator.state.skipped_steps) == (1, 0)
    assert model.second.item() == pytest.approx(-3.0)


@pytest.mark.parametrize("changes", [{"strategy": "layer_wise"}, {"mode": "selective"}])
def test_an_unknown_parameter_name_is_refused_with_the_known_ones(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"no parameter of the model: fourth.*first, second, third"):
        accumulator_of(Three(), layer_accumulation_weights={"fourth": 1.0}, **changes)


def test_an_unknown_group_is_refused_with_the_known_ones() -> None:
    model = Three()
    with pytest.raises(ValueError, match="one of group_0, group_1; got 'group_2'"):
        accumulator_of(model, groups(model), strategy="parameter_groups", parameter_group_weights={"group_2": 1.0})


def test_layer_weights_that_are_not_used_log_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="onyx")
    model = Three()
    accumulator = accumulator_of(model, groups(model), layer_accumulation_weights={"conv1.weight": 0.5})
    assert "layer_accumulation_weights act with strategy layer_wise" in caplog.text
    assert moved(model, accumulator) == pytest.approx([3.0, 4.0, 0.5])
