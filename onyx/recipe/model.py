"""The model as a step runs it: its config, structure, adapter and mixed precision.

Errors of transformers and PEFT pass through unchanged: planner and rank each translate them.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import nn

from onyx.accumulation import precision as accumulation
from onyx.recipe.precision import Precision


def read_config(name: str, *, local_files_only: bool = False, remote_code: bool = False) -> Any:
    """The config of a hub id or a directory."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(name, local_files_only=local_files_only, trust_remote_code=remote_code)


def settle_config(config: Any) -> None:
    """Change a causal model's config to what is trained: no cache of keys and values, no balance loss of routers."""
    config.use_cache = False
    drop_balance_loss(config)


def drop_balance_loss(config: Any) -> None:
    """The routers' balance loss is a product of two means over the micro-batch: no sum over tokens."""
    for each in (config, config.get_text_config()):
        if getattr(each, "output_router_logits", False):
            each.output_router_logits = False


def build_model(
    config: Any,
    *,
    causal: bool = True,
    dtype: torch.dtype | None = None,
    device: str = "meta",
    remote_code: bool = False,
) -> nn.Module:
    """The structure of a model, its weights without values (meta) or random (any other device).

    `dtype` None is the one that the config names.
    """
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    auto = AutoModelForCausalLM if causal else AutoModelForSequenceClassification
    options = {} if dtype is None else {"dtype": dtype}
    with torch.device(device):
        model: nn.Module = auto.from_config(  # type: ignore[no-untyped-call]
            config, trust_remote_code=remote_code, **options
        )
    return model


def add_adapter(
    model: nn.Module,
    *,
    r: int,
    alpha: float,
    dropout: float,
    targets: Sequence[str] | str | None,
    causal: bool = True,
    exclude: Sequence[str] | None = None,
) -> nn.Module:
    """The model frozen, with a LoRA adapter beside it that is trained in float32. `targets` None: PEFT's default."""
    from peft import LoraConfig, get_peft_model

    options: dict[str, Any] = {
        "r": r,
        "lora_alpha": alpha,
        "lora_dropout": dropout,
        "target_modules": targets if targets is None or isinstance(targets, str) else list(targets),
        "exclude_modules": None if exclude is None else list(exclude),
        "task_type": "CAUSAL_LM" if causal else "SEQ_CLS",
        # PEFT warns that Conv1D weights are transposed, and handles them; users need no warning of that.
        "fan_in_fan_out": any(type(each).__name__ == "Conv1D" for each in model.modules()),
    }
    adapted: nn.Module = get_peft_model(model, LoraConfig(**options))
    for each in adapted.parameters():
        if each.requires_grad and each.dtype != torch.float32:
            each.data = each.data.float()
    return adapted


def checkpoint_blocks(model: nn.Module) -> None:
    """Keep only the blocks' inputs for backward. ValueError or AttributeError where the model does not support it."""
    # Not the reentrant kind: it needs an input with a gradient, which frozen embeddings do not give.
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})  # type: ignore[operator]


def autocast(precision: Precision, device: str) -> AbstractContextManager[object]:
    """Mixed precision of forward where the recipe asks for it; for float32 nothing at all."""
    if precision == "float32":
        return nullcontext()
    return accumulation.autocast(accumulation.Precision(precision), torch.device(device))


def load_dtype(method: Literal["full", "lora"], precision: Precision) -> torch.dtype:
    """What weights are loaded in: the precision's dtype where they are frozen beside an adapter, else float32."""
    return accumulation.Precision(precision).dtype if method == "lora" else torch.float32


def first_line(error: BaseException) -> str:
    """The first line of an error's message: some libraries add pages."""
    return (str(error).strip() or type(error).__name__).split("\n", 1)[0]
