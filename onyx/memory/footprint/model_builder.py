"""From a recipe to a model: only the config is read, and on the meta device no weight exists."""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from onyx.memory.errors import ModelConfigError, ModelNotFoundError, PlanError
from onyx.memory.recipe import Recipe
from onyx.recipe.model import (
    add_adapter,
    build_model,
    checkpoint_blocks,
    first_line,
    load_dtype,
    read_config,
    settle_config,
)

CLASSIFIER_HEADS = ("classifier", "score", "pre_classifier")

ATTENTION_DROPOUTS = ("attn_pdrop", "attention_dropout", "attention_probs_dropout_prob", "attn_dropout")


def load_config(recipe: Recipe) -> Any:
    """The transformers config that the recipe names, a copy of its own."""
    from transformers import PretrainedConfig

    if isinstance(recipe.model, PretrainedConfig):
        return _settled(copy.deepcopy(recipe.model), recipe)
    if not isinstance(recipe.model, str | Path) or not str(recipe.model):
        raise PlanError(f"model must be a hub id, a directory or a transformers config, not {recipe.model!r}")
    try:
        return _settled(read_config(str(recipe.model)), recipe)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if Path(recipe.model, "config.json").is_file():
            raise ModelConfigError(
                f"{recipe.model!s} has a config.json that transformers cannot read: {first_line(error)}"
            ) from error
        raise ModelNotFoundError(
            f"no model config found for {str(recipe.model)!r}: give a hub id that this host can reach, "
            "or a directory with a config.json"
        ) from error


def _settled(config: Any, recipe: Recipe) -> Any:
    if is_causal(config, recipe):
        settle_config(config)
    return config


def is_causal(config: Any, recipe: Recipe) -> bool:
    """Whether the head predicts next tokens. A config names its architecture; without one, encoders classify."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

    if recipe.task != "auto":
        return recipe.task == "causal-lm"
    names = getattr(config, "architectures", None) or []
    if any(name.endswith("ForSequenceClassification") for name in names):
        return False
    if any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names):
        return True
    kind = type(config)
    return kind in MODEL_FOR_CAUSAL_LM_MAPPING and (
        kind not in MODEL_FOR_MASKED_LM_MAPPING or getattr(config, "is_decoder", False)
    )


def positions(config: Any) -> int | None:
    """The longest sample that the model takes. None when the config sets no limit."""
    text = config.get_text_config()
    value = getattr(text, "max_position_embeddings", None)
    if not isinstance(value, int) or value < 1:
        return None
    # RoBERTa and similar models count positions from the padding id on.
    offset = getattr(text, "pad_token_id", None) if text.model_type in OFFSET_POSITIONS else None
    return value - (offset + 1) if isinstance(offset, int) else value


OFFSET_POSITIONS = (
    "roberta",
    "xlm-roberta",
    "camembert",
    "longformer",
    "mpnet",
    "roberta-prelayernorm",
    "data2vec-text",
)


def check_length(config: Any, recipe: Recipe) -> None:
    """PlanError for samples longer than the model's positions, which would fail in the first forward."""
    limit = positions(config)
    if limit is not None and recipe.max_length > limit:
        raise PlanError(f"max_length {recipe.max_length} is beyond the model's {limit} positions: give at most {limit}")


def sliding_window(config: Any) -> int | None:
    """The length from which samples are masked to a sliding window, where the model has one."""
    window = getattr(config, "sliding_window", None)
    used = getattr(config, "use_sliding_window", True)
    return window if isinstance(window, int) and used else None


def beyond_window(config: Any, length: int) -> bool:
    """Whether samples of that length meet the sliding window, which takes another path through attention."""
    window = sliding_window(config)
    return window is not None and length >= window


def without_attention_dropout(config: Any) -> Any:
    """The config for a GPU, whose attention drops inside its kernel; the CPU's keeps length × length numbers for it."""
    changed = copy.deepcopy(config)
    for name in ATTENTION_DROPOUTS:
        if getattr(changed, name, None):
            setattr(changed, name, 0.0)
    return changed


def build(config: Any, recipe: Recipe, device: str = "meta") -> nn.Module:
    """The model as it is trained, with weights that have no values (meta) or random ones (any other device)."""
    causal = is_causal(config, recipe)
    dtype = load_dtype(recipe.method, recipe.precision)
    try:
        model = build_model(copy.deepcopy(config), causal=causal, dtype=dtype, device=device)
    except Exception as error:  # models fail in many ways on a wrong config
        raise ModelConfigError(
            f"no {'causal language' if causal else 'classification'} model can be built from "
            f"this {type(config).__name__}: {type(error).__name__}: {first_line(error)}"
        ) from error
    if recipe.method == "lora":
        model = _with_lora(model, config, recipe, device)
    if recipe.gradient_checkpointing:
        _checkpoint(model)
    return model.train()


def _with_lora(model: nn.Module, config: Any, recipe: Recipe, device: str) -> nn.Module:
    lora, causal = recipe.lora, is_causal(config, recipe)
    targets = list(lora.target_modules) if lora.target_modules else _default_targets(config)
    # A classifier's head is trained whole, so no adapter goes on it.
    exclude = None if causal else CLASSIFIER_HEADS
    try:
        with torch.device(device):
            return add_adapter(
                model,
                r=lora.r,
                alpha=lora.alpha,
                dropout=lora.dropout,
                targets=targets,
                causal=causal,
                exclude=exclude,
            )
    except (ValueError, TypeError) as error:
        raise PlanError(f"lora target_modules {targets!r} do not suit this model: {first_line(error)}") from error


def _default_targets(config: Any) -> list[str] | str:
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as KNOWN

    return list(KNOWN[config.model_type]) if config.model_type in KNOWN else "all-linear"


def _checkpoint(model: nn.Module) -> None:
    try:
        checkpoint_blocks(model)
    except (ValueError, AttributeError) as error:
        raise PlanError(
            "this model does not support gradient checkpointing: set gradient_checkpointing to false"
        ) from error
