"""Numbers that may live on a device.

Inside a window a number stays where it was computed, because reading it would make the host wait. At the boundary
it becomes a Python number. On the CPU there is nothing to wait for, so there it is one from the start.
"""

from typing import TypeAlias

from torch import Tensor

Number: TypeAlias = float | Tensor


def settle(value: Number) -> Number:
    """A Python number where reading costs nothing, else the 0-dim tensor as it is, without its graph."""
    if not isinstance(value, Tensor):
        return float(value)
    value = value.detach()
    return value.item() if value.device.type == "cpu" else value


def read(value: Number) -> float:
    """A Python number, waiting for the device if need be: only at a boundary."""
    return float(value)
