"""Numbers that may live on a device.

Inside a window a number stays on its device, because reading it would make the host wait. At the end of the window it
becomes a Python number. On the CPU reading costs nothing, so there it is a Python number from the start.
"""

from typing import TypeAlias

from torch import Tensor

Number: TypeAlias = float | Tensor


def settle(value: Number) -> Number:
    """A Python number where reading costs nothing, else the 0-dim tensor, detached from its graph."""
    if not isinstance(value, Tensor):
        return float(value)
    value = value.detach()
    return value.item() if value.device.type == "cpu" else value


def read(value: Number) -> float:
    """A Python number. May wait for the device: call it at the end of a window only."""
    return float(value)
