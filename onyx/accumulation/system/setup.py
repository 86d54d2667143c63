"""Model, optimizer and the other parts that `setup_training` is given, checked once."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from onyx.accumulation import check
from onyx.accumulation.boundary import Strategy
from onyx.accumulation.ddp import DdpPeers, peers_of, unwrapped
from onyx.accumulation.loss_scaling import scaling_for
from onyx.accumulation.precision import Precision, autocast, grad_scaler, resolve
from onyx.accumulation.system.config import GradientAccumulationConfig
from onyx.accumulation.system.strategy import Selective, selective_for, strategy_for


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The parts of a training run, checked."""

    model: Module
    optimizer: Optimizer
    criterion: Callable[..., Any]
    scheduler: Any
    device: torch.device
    precision: Precision
    peers: DdpPeers | None
    strategy: Strategy | None
    left_out: Selective | None

    @property
    def bare_model(self) -> Module:
        """The model without its DDP wrapper."""
        return unwrapped(self.model)

    def autocast(self) -> AbstractContextManager[object]:
        """The context for forward."""
        if self.precision is Precision.FLOAT32:
            return nullcontext()  # the caller may have an autocast of its own
        return autocast(self.precision, self.device)

    @property
    def reduction(self) -> Literal["mean", "sum"]:
        """Whether the criterion returns the mean over the samples of a batch, or their sum."""
        return "sum" if getattr(self.criterion, "reduction", "mean") == "sum" else "mean"


class SetupHolder:
    """Base of the accumulator and the trainer: the parts that `setup_training` was given."""

    _setup: Setup | None = None

    @property
    def setup(self) -> Setup:
        """The parts. RuntimeError before `setup_training`."""
        if self._setup is None:
            raise RuntimeError("nothing to train yet: call setup_training(model, optimizer, criterion) first")
        return self._setup

    @property
    def model(self) -> Module | None:
        return None if self._setup is None else self._setup.model

    @property
    def optimizer(self) -> Optimizer | None:
        return None if self._setup is None else self._setup.optimizer

    @property
    def criterion(self) -> Callable[..., Any] | None:
        return None if self._setup is None else self._setup.criterion

    @property
    def scheduler(self) -> Any:
        return None if self._setup is None else self._setup.scheduler

    @property
    def device(self) -> torch.device | None:
        return None if self._setup is None else self._setup.device


def prepare(
    config: GradientAccumulationConfig,
    model: Module,
    optimizer: Optimizer,
    criterion: Callable[..., Any],
    scheduler: Any,
    device: torch.device | str | None,
    precision: Precision | str,
) -> Setup:
    """Check the parts, move the model to its device and clear old gradients."""
    if not isinstance(model, Module):
        raise ValueError(f"model must be a torch.nn.Module, got {model!r}")  # noqa: TRY004
    if not isinstance(optimizer, Optimizer):
        raise ValueError(f"optimizer must be a torch.optim.Optimizer, got {optimizer!r}")  # noqa: TRY004
    if not callable(criterion) or getattr(criterion, "reduction", "mean") not in ("mean", "sum"):
        raise ValueError(f"criterion must give one number (reduction mean or sum), got {criterion!r}")
    steps = scheduler is None or callable(getattr(scheduler, "step", None))
    if not steps or isinstance(scheduler, ReduceLROnPlateau):
        raise ValueError(f"scheduler must have a step() without arguments, or be None; got {scheduler!r}")
    name = check.one_of("precision", precision, [each.value for each in Precision])
    where = _device(device, model)
    strategy = strategy_for(config, unwrapped(model), optimizer)
    left_out = selective_for(config, unwrapped(model))
    model.to(where)
    optimizer.zero_grad(set_to_none=True)
    return Setup(
        model=model,
        optimizer=optimizer,
        criterion=criterion,
        scheduler=scheduler,
        device=where,
        precision=resolve(Precision(name).dtype, where),
        peers=peers_of(model),
        strategy=strategy,
        left_out=left_out,
    )


def scaler_for(config: GradientAccumulationConfig, setup: Setup, given: Any) -> Any:
    """The loss scaler to use: the user's, a new one if the precision needs it, or None."""
    if given is not None:
        scaling_for(given)  # refuses anything else
        if not config.gradient_scaling:
            raise ValueError("gradient_scaling=False uses no scaler: leave scaler out, or set gradient_scaling=True")
        return given
    if config.gradient_scaling and setup.precision is Precision.FP16:
        return grad_scaler(setup.precision, setup.device)
    return None


def _device(device: torch.device | str | None, model: Module) -> torch.device:
    if device is None:
        parameter = next(model.parameters(), None)
        return torch.device("cpu") if parameter is None else parameter.device
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device must be a torch device such as 'cpu' or 'cuda:0', got {device!r}") from error
