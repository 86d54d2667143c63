"""Finds parts of a model that keep an update from being a sum over samples.

Onyx cuts a window into micro-batches as memory allows. That is exact only if a sample's loss does not depend on others.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from onyx.training.contract.errors import ModelError


@dataclass(frozen=True, kw_only=True)
class Inexact:
    """One such part."""

    code: str
    message: str
    refused: bool
    """True: the model cannot be trained. False: it is trained, with a warning in the plan."""


def find_inexact(model: nn.Module) -> list[Inexact]:
    """All such parts of the model, which may be on the meta device."""
    found = []
    if any(isinstance(each, _BatchNorm) for each in model.modules()):
        found.append(
            Inexact(
                code="batch_norm",
                message="BatchNorm mixes the samples of a micro-batch, so the update would depend on the cut",
                refused=True,
            )
        )
    config = getattr(model, "config", None)
    if config is not None:
        found.extend(_experts(config.get_text_config()))
    return found


def refuse_inexact(found: list[Inexact]) -> list[str]:
    """The warnings; ModelError if any part is refused."""
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
                message="experts with limited capacity drop tokens depending on the rest of the micro-batch",
                refused=True,
            )
        )
    if getattr(config, "router_jitter_noise", 0):
        found.append(
            Inexact(
                code="router_jitter",
                message="the routers' jitter is random: as with dropout, an update depends on how the window is cut",
                refused=False,
            )
        )
    if getattr(config, "router_aux_loss_coef", 0) or getattr(config, "output_router_logits", False):
        found.append(
            Inexact(
                code="router_balance",
                message="the routers' balance loss is not a sum over tokens and is left out of the loss",
                refused=False,
            )
        )
    return found
