"""Mixed precision of forward, and the dtype of frozen weights."""

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

from onyx.accumulation import precision as accumulation
from onyx.recipe.precision import Precision


def autocast(precision: Precision, device: str) -> AbstractContextManager[object]:
    """Mixed precision where the recipe asks for it; for float32 nothing at all."""
    if precision == "float32":
        return nullcontext()
    return accumulation.autocast(accumulation.Precision(precision), torch.device(device))


def load_dtype(method: Literal["full", "lora"], precision: Precision) -> torch.dtype:
    """What weights are loaded in: the precision's dtype where they are frozen beside an adapter, else float32."""
    return accumulation.Precision(precision).dtype if method == "lora" else torch.float32
