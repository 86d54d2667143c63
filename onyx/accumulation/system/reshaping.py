"""The core's strategies, as a config names them."""

import logging

from torch.nn import Module
from torch.optim import Optimizer

from onyx.accumulation.boundary import Strategy
from onyx.accumulation.strategy import AdaptiveLayers, ByGroup, LayerWise, Selective
from onyx.accumulation.system.config import AccumulationStrategy, GradientAccumulationConfig

logger = logging.getLogger(__name__)


def strategy_for(config: GradientAccumulationConfig, model: Module, optimizer: Optimizer) -> Strategy | None:
    """What gradients go through at the boundary; None for nothing."""
    match config.strategy:
        case AccumulationStrategy.LAYER_WISE:
            return LayerWise(model, config.layer_accumulation_weights)
        case AccumulationStrategy.PARAMETER_GROUPS:
            return ByGroup(optimizer, config.parameter_group_weights)
        case AccumulationStrategy.ADAPTIVE_LAYERS:
            return AdaptiveLayers()
        case _:
            return None


def left_out(config: GradientAccumulationConfig, model: Module) -> Selective | None:
    """What drops the gradients of parameters that are listed with weight 0."""
    if config.selective:
        return Selective(model, config.layer_accumulation_weights)
    if config.layer_accumulation_weights and config.strategy is not AccumulationStrategy.LAYER_WISE:
        logger.warning(
            "layer_accumulation_weights act with strategy layer_wise or in selective mode only: not with %s",
            config.strategy.value,
        )
    return None
