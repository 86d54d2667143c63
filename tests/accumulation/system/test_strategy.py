import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

from onyx.accumulation.system.strategy import AdaptiveLayers, ByGroup, Chain, LayerWise, Selective


def graded(value: float = 1.0) -> nn.Linear:
    layer = nn.Linear(2, 2)
    layer.weight.grad = torch.full((2, 2), value)
    layer.bias.grad = torch.full((2,), value)
    return layer


def grads(layer: nn.Linear) -> tuple[torch.Tensor, torch.Tensor]:
    assert layer.weight.grad is not None
    assert layer.bias.grad is not None
    return layer.weight.grad, layer.bias.grad


def test_layer_wise_scales_by_full_name() -> None:
    layer = graded()
    LayerWise(layer, {"weight": 0.5}).reshape(SGD(layer.parameters()))
    weight, bias = grads(layer)
    assert torch.equal(weight, torch.full((2, 2), 0.5))
    assert torch.equal(bias, torch.ones(2))


def test_groups_scale_by_their_number() -> None:
    layer = graded()
    groups: list[dict[str, Any]] = [{"params": [layer.weight]}, {"params": [layer.bias]}]
    optimizer = SGD(groups)
    ByGroup(optimizer, {"group_1": 0.25}).reshape(optimizer)
    weight, bias = grads(layer)
    assert torch.equal(weight, torch.ones(2, 2))
    assert torch.equal(bias, torch.full((2,), 0.25))


def test_adaptive_layers_divide_by_a_norm_above_one() -> None:
    layer = graded(value=0.6)  # the weight's norm is 1.2, the bias's 0.85
    AdaptiveLayers().reshape(SGD(layer.parameters()))
    weight, bias = grads(layer)
    assert float(weight.norm()) == pytest.approx(1.0)
    assert torch.equal(bias, torch.full((2,), 0.6))


def test_selective_leaves_no_gradient_for_momentum_or_decay_to_act_on() -> None:
    layer = graded()
    optimizer = AdamW(layer.parameters(), lr=0.1, weight_decay=0.5)
    before = layer.weight.detach().clone()
    Selective(layer, {"weight": 0.0, "bias": 0.5}).reshape(optimizer)
    assert layer.weight.grad is None
    assert layer.bias.grad is not None
    assert torch.equal(layer.bias.grad, torch.ones(2))  # only layer-wise scales
    optimizer.step()
    assert torch.equal(layer.weight, before)


def test_a_chain_runs_in_order() -> None:
    layer = graded(value=3.0)
    optimizer = SGD(layer.parameters())
    Chain(AdaptiveLayers(), LayerWise(layer, {"weight": 0.5})).reshape(optimizer)
    assert float(grads(layer)[0].norm()) == pytest.approx(0.5)


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    layer = graded()
    with pytest.raises(ValueError, match=r"names no parameter of the model: conv\. Allowed are: weight, bias"):
        LayerWise(layer, {"conv": 1.0})
    with pytest.raises(ValueError, match="must be one of group_0; got 'group_3'"):
        ByGroup(SGD(layer.parameters()), {"group_3": 1.0})


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf, "1", None])
def test_weights_are_finite_and_not_negative(weight: object) -> None:
    with pytest.raises(ValueError, match="the weight of weight must be >= 0 and finite"):
        LayerWise(graded(), {"weight": weight})  # type: ignore[dict-item]
