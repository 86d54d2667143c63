"""What an accumulator takes as a micro-batch's loss."""

from typing import Any

from torch import Tensor

from onyx.accumulation import check


def admit(loss: Any, backward: Any, weight: Any, reduction: Any) -> None:
    """Refuse what cannot be accumulated, before anything is counted."""
    check.flag("backward", backward)
    check.one_of("reduction", reduction, ["mean", "sum"])
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise ValueError(f"loss must be a tensor of one number, got {loss!r}")
    if backward and not loss.requires_grad:
        raise ValueError("loss has no graph to differentiate: compute it with gradients, or pass backward=False")
    if weight is not None and not backward:
        raise ValueError("weight needs backward=True: a gradient that is already there cannot be weighted")
