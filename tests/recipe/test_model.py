"""What the planner builds is what a rank trains."""

from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import nn

from onyx.memory.footprint.model_builder import build
from onyx.memory.footprint.model_builder import load_config as plan_config
from onyx.memory.recipe import Lora, Recipe
from onyx.recipe.model import autocast, load_dtype
from onyx.recipe.precision import Precision
from onyx.training.contract.spec import LoraSpec
from onyx.training.models.load import load_config, load_model
from onyx.training.models.tiny import make_tiny

DTYPES: list[tuple[Precision, torch.dtype]] = [("bf16", torch.bfloat16), ("fp16", torch.float16)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("models"))


def shapes(model: nn.Module) -> dict[str, tuple[torch.Size, torch.dtype, bool]]:
    return {name: (each.shape, each.dtype, each.requires_grad) for name, each in model.named_parameters()}


def test_both_read_the_same_config(tiny: Path) -> None:
    planned, trained = plan_config(Recipe(model=str(tiny))), load_config(tiny)
    assert planned.to_dict() == trained.to_dict()
    assert planned.use_cache is False


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_both_make_the_same_parameters(
    tiny: Path, method: Literal["full", "lora"], precision: Any, checkpointing: bool
) -> None:
    lora = Lora(r=3, target_modules=("q_proj", "down_proj"))
    recipe = Recipe(
        model=str(tiny), method=method, lora=lora, precision=precision, gradient_checkpointing=checkpointing
    )
    planned = build(plan_config(recipe), recipe)
    trained: Any = load_model(
        tiny,
        method=method,
        lora=LoraSpec(r=3, target_modules=["q_proj", "down_proj"]),
        precision=precision,
        gradient_checkpointing=checkpointing,
    )
    assert shapes(planned) == shapes(trained)
    assert all(each.is_meta for each in planned.parameters())
    assert getattr(planned, "is_gradient_checkpointing", None) is trained.is_gradient_checkpointing is checkpointing


def test_the_routers_balance_loss_is_in_neither() -> None:
    from transformers import MixtralConfig

    config = MixtralConfig(num_hidden_layers=1, hidden_size=8, output_router_logits=True)
    assert plan_config(Recipe(model=config)).output_router_logits is False
    assert config.output_router_logits is True  # the caller's own stays as it is


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
