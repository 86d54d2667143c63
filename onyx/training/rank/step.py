"""Model and forward/backward of one rank."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from onyx.accumulation.loss_scaling import Scaling, TorchScaling
from onyx.accumulation.window import Window
from onyx.memory.footprint.training_step import Batch
from onyx.recipe.model import autocast
from onyx.recipe.precision import Precision
from onyx.training.contract.child_process import StopFlag
from onyx.training.loss.compiled_loss import CompiledLoss
from onyx.training.loss.objective import ForwardResult, Objective
from onyx.training.packing.order import Indices, mix
from onyx.training.packing.samples import Data, batch_of


@dataclass(frozen=True, kw_only=True)
class RankStep:
    """What forward and backward of a micro-batch need. It does not change while an attempt lasts."""

    model: nn.Module
    samples: Data
    objective: Objective
    device: torch.device
    precision: Precision
    scaling: Scaling
    seed: int
    stop: StopFlag
    joined: bool = False
    """Whether a micro-batch is one row of samples without padding between them."""

    compiled: CompiledLoss | None = None
    parameters: list[Parameter] = field(default_factory=list)
    """The trained ones."""

    def __post_init__(self) -> None:
        self.parameters.extend(each for each in self.model.parameters() if each.requires_grad)

    def forward_backward(self, chosen: Indices, window: Window, update: int) -> Tensor:
        """Forward and backward of one micro-batch. Returns its `ForwardResult.sums`."""
        self.seed_generators(update, int(chosen[0]))
        batch = batch_of(self.samples, chosen, self.device, joined=self.joined)
        result = self.forward(batch)
        contribution = window.take(result.loss, int(self.samples.weights[chosen].sum()), reduction="sum")
        self.scaling.scale(contribution).backward()
        return result.sums

    def seed_generators(self, *numbers: int) -> None:
        """Seed from the job's seed and the numbers, so that no random state needs storing.

        torch.manual_seed would take milliseconds, because it seeds every backend.
        """
        seed = mix(self.seed, *numbers) >> 1
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def resident_bytes(self, optimizer: Optimizer) -> int:
        """Bytes of weights, buffers and optimizer state: what is allocated between two windows."""
        state = [value for each in optimizer.state.values() for value in each.values()]
        tensors = [*self.model.parameters(), *self.model.buffers(), *state]
        return sum(each.numel() * each.element_size() for each in tensors)

    def scaler_state(self) -> dict[str, Any]:
        """The loss scaler's state; empty where losses are not scaled."""
        state: dict[str, Any] = self.scaling.scaler.state_dict() if isinstance(self.scaling, TorchScaling) else {}
        return state

    def forward(self, batch: Batch) -> ForwardResult:
        """Forward and loss, in the job's precision."""
        with autocast(self.precision, self.device.type):
            return self.objective.measure(self.model, batch)
