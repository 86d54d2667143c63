"""Mixed precision is the same for ranks, the planner and the libraries."""

import pytest
import torch

from onyx.recipe.autocast import autocast, load_dtype
from onyx.recipe.precision import Precision

DTYPES: list[tuple[Precision, torch.dtype]] = [("bf16", torch.bfloat16), ("fp16", torch.float16)]


@pytest.mark.parametrize(("precision", "dtype"), DTYPES)
def test_forward_computes_in_the_precision(precision: Precision, dtype: torch.dtype) -> None:
    with autocast(precision, "cpu"):
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") is dtype
    assert not torch.is_autocast_enabled("cpu")


def test_float32_leaves_the_callers_context_alone() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), autocast("float32", "cpu"):
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(("precision", "dtype"), DTYPES)
def test_only_frozen_weights_are_loaded_in_half(precision: Precision, dtype: torch.dtype) -> None:
    assert load_dtype("lora", precision) is dtype
    assert load_dtype("full", precision) is torch.float32
    assert load_dtype("lora", "float32") is torch.float32
