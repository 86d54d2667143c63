"""What is done to the finished gradients of a window before clipping: weights by name, by group, by norm."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from onyx.accumulation import check
from onyx.accumulation.boundary import Strategy, clear, parameters_of
from onyx.accumulation.system.config import AccumulationStrategy, GradientAccumulationConfig

logger = logging.getLogger(__name__)


class LayerWise:
    """Multiplies gradients by a weight per parameter name. Parameters that are not named keep theirs."""

    def __init__(self, model: Module, weights: Mapping[str, float]) -> None:
        self._weights = named_weights(model, weights)

    def reshape(self, optimizer: Optimizer) -> None:
        _scale((parameter.grad, weight) for parameter, weight in self._weights)


class ByGroup:
    """Multiplies the gradients of the i-th parameter group of the optimizer by the weight of "group_<i>"."""

    def __init__(self, optimizer: Optimizer, weights: Mapping[str, float]) -> None:
        known = [f"group_{index}" for index in range(len(optimizer.param_groups))]
        self._weights = {
            check.one_of("a key of parameter_group_weights", name, known): _weight(name, weight)
            for name, weight in weights.items()
        }

    def reshape(self, optimizer: Optimizer) -> None:
        _scale(
            (parameter.grad, self._weights.get(f"group_{index}", 1.0))
            for index, group in enumerate(optimizer.param_groups)
            for parameter in group["params"]
        )


class AdaptiveLayers:
    """Divides the gradient of each parameter by its norm if that is above 1."""

    def reshape(self, optimizer: Optimizer) -> None:
        gradients = [p.grad for p in parameters_of(optimizer) if p.grad is not None]
        if gradients:
            norms = torch._foreach_norm(gradients)
            torch._foreach_clamp_min_(norms, 1.0)
            torch._foreach_div_(gradients, norms)


class Selective:
    """Sets the gradients of parameters with weight 0 to None, so that neither momentum nor weight decay moves them."""

    def __init__(self, model: Module, weights: Mapping[str, float]) -> None:
        self._left_out = [parameter for parameter, weight in named_weights(model, weights) if weight == 0]

    def reshape(self, optimizer: Optimizer) -> None:
        clear(self._left_out)


class Chain:
    """One strategy after another."""

    def __init__(self, *strategies: Strategy) -> None:
        self._strategies = strategies

    def reshape(self, optimizer: Optimizer) -> None:
        for strategy in self._strategies:
            strategy.reshape(optimizer)


def strategy_for(config: GradientAccumulationConfig, model: Module, optimizer: Optimizer) -> Strategy | None:
    """What the strategy of the config does to gradients; None for nothing."""
    match config.strategy:
        case AccumulationStrategy.LAYER_WISE:
            return LayerWise(model, config.layer_accumulation_weights)
        case AccumulationStrategy.PARAMETER_GROUPS:
            return ByGroup(optimizer, config.parameter_group_weights)
        case AccumulationStrategy.ADAPTIVE_LAYERS:
            return AdaptiveLayers()
        case _:
            return None


def selective_for(config: GradientAccumulationConfig, model: Module) -> Selective | None:
    """The strategy that skips parameters with weight 0; None if no parameter has weight 0."""
    if config.selective:
        return Selective(model, config.layer_accumulation_weights)
    if config.layer_accumulation_weights and config.strategy is not AccumulationStrategy.LAYER_WISE:
        logger.warning(
            "layer_accumulation_weights act with strategy layer_wise or in selective mode only: not with %s",
            config.strategy.value,
        )
    return None


def named_weights(model: Module, weights: Mapping[str, float]) -> list[tuple[Parameter, float]]:
    """The parameters that `weights` names, each with its weight."""
    named = dict(model.named_parameters())
    unknown = [name for name in weights if name not in named]
    if unknown:
        raise ValueError(
            f"layer_accumulation_weights names no parameter of the model: {', '.join(unknown)}. "
            f"Allowed are: {', '.join(list(named)[:20])}{' …' if len(named) > 20 else ''}"
        )
    return [(named[name], _weight(name, weight)) for name, weight in weights.items()]


def _weight(name: str, weight: Any) -> float:
    return check.number(f"the weight of {name}", weight, at_least=0)


def _scale(pairs: Iterable[tuple[Tensor | None, float]]) -> None:
    for gradient, weight in pairs:
        if gradient is not None and weight != 1.0:
            gradient.mul_(weight)
