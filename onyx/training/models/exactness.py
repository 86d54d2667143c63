"""What in a model keeps an update from being a sum over its samples.

Onyx cuts a window as memory allows, which changes nothing as long as each sample's loss is its own business.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from onyx.training.contract.errors import ModelError


@dataclass(frozen=True, kw_only=True)
class Inexact:
    """One such thing."""

    code: str
    message: str
    refused: bool
    """Whether the model cannot be trained for it, or is trained and the plan names it."""


def find_inexact(model: nn.Module) -> list[Inexact]:
    """Look at a model, on the meta device too."""
    found = []
    if any(isinstance(each, _BatchNorm) for each in model.modules()):
        found.append(
            Inexact(
                code="batch_norm",
                message="BatchNorm mixes the samples of a micro-batch, so the update would follow the cut",
                refused=True,
            )
        )
    config = getattr(model, "config", None)
    if config is not None:
        found.extend(_experts(config.get_text_config()))
    return found


def refuse_inexact(found: list[Inexact]) -> list[str]:
    """The messages of what is only named; ModelError for what is refused."""
    for each in found:
        if each.refused:
            raise ModelError("model_inexact", f"the model cannot be trained exactly: {each.message}")
    return [each.message for each in found]


def _experts(config: Any) -> list[Inexact]:
    found = []
    if getattr(config, "expert_capacity", None):
        found.append(
            Inexact(
                code="expert_capacity",
                message="experts of limited capacity drop tokens depending on the others of the micro-batch",
                refused=True,
            )
        )
    if getattr(config, "router_jitter_noise", 0):
        found.append(
            Inexact(
                code="router_jitter",
                message="the routers' jitter is random, so that updates are exact per cut, as with dropout",
                refused=False,
            )
        )
    if getattr(config, "router_aux_loss_coef", 0) or getattr(config, "output_router_logits", False):
        found.append(
            Inexact(
                code="router_balance",
                message="the routers' balance loss is no sum over tokens and is left out of the loss",
                refused=False,
            )
        )
    return found
