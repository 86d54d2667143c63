"""Strategies: what the gradients of a window go through."""

import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from onyx.accumulation.system import GradientAccumulator
from tests.accumulation.system.common import accumulator_of

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


def test_a_parameter_left_out_cannot_spoil_an_update() -> None:
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


def test_layer_weights_that_nobody_reads_are_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="onyx")
    model = Three()
    accumulator = accumulator_of(model, groups(model), layer_accumulation_weights={"conv1.weight": 0.5})
    assert "layer_accumulation_weights act with strategy layer_wise" in caplog.text
    assert moved(model, accumulator) == pytest.approx([3.0, 4.0, 0.5])
