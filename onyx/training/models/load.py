"""Loads a directory as the model that a rank trains."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from onyx.memory.devices.cpu import is_out_of_memory
from onyx.recipe.model import (
    add_adapter,
    build_model,
    checkpoint_blocks,
    first_line,
    load_dtype,
    read_config,
    settle_config,
)
from onyx.recipe.precision import Precision
from onyx.training.contract.errors import ModelError, UserError
from onyx.training.contract.spec import LoraSpec


def load_config(directory: Path, *, remote_code: bool = False) -> Any:
    """The model's config, with what training changes in it."""
    try:
        config = read_config(str(directory), local_files_only=True, remote_code=remote_code)
    except Exception as error:  # each model reads its config with code of its own
        raise _unreadable(error) from error
    settle_config(config)
    return config


def build_empty(config: Any, *, remote_code: bool = False) -> nn.Module:
    """The model on the meta device: its structure without its weights."""
    try:
        return build_model(config, remote_code=remote_code)
    except Exception as error:  # as above
        raise _unreadable(error) from error


def load_model(
    directory: Path,
    *,
    method: Literal["full", "lora"] = "full",
    lora: LoraSpec | None = None,
    precision: Precision = "float32",
    gradient_checkpointing: bool = False,
    seed: int = 0,
    device: torch.device | str = "cpu",
    remote_code: bool = False,
) -> nn.Module:
    """The model in training mode: trained weights in float32, frozen ones in the precision's dtype.

    The same directory, adapter and seed give the same bits on every rank and every attempt.
    """
    with _seeded(seed):
        model = _read(directory, load_dtype(method, precision), remote_code)
        copy_from_file(model)
        if method == "lora":
            model = with_lora(model, lora or LoraSpec())
    if gradient_checkpointing:
        _checkpoint(model)
    return model.to(device).train()


def copy_from_file(model: nn.Module) -> None:
    """Copy each weight out of the mapped file, which the rlimit would not count: a shortage must be an exception."""
    with torch.no_grad():
        for each in (*model.parameters(), *model.buffers()):
            each.data = each.data.clone()


def with_lora(model: nn.Module, lora: LoraSpec) -> nn.Module:
    """The model with its weights frozen, and with adapters that are trained in float32."""
    try:
        return add_adapter(model, r=lora.r, alpha=lora.alpha, dropout=lora.dropout, targets=lora.target_modules)
    except ValueError as error:
        raise UserError(
            "lora_target_modules",
            f"lora.target_modules do not fit this model: {first_line(error)}",
            param="training.lora.target_modules",
        ) from error


def _read(directory: Path, dtype: torch.dtype, remote_code: bool) -> nn.Module:
    from transformers import AutoModelForCausalLM

    config = load_config(directory, remote_code=remote_code)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            str(directory),
            config=config,
            dtype=dtype,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=remote_code,
            output_loading_info=True,
        )
    except Exception as error:  # each model reads its files with code of its own
        if is_out_of_memory(error):
            raise
        raise _unreadable(error) from error
    model: nn.Module = loaded[0]
    missing = sorted(loaded[1]["missing_keys"])
    if missing:
        raise ModelError(
            "model_incomplete",
            f"the model's files lack {len(missing)} of its weights ({missing[0]} …), which would be random",
        )
    return model


def _checkpoint(model: nn.Module) -> None:
    try:
        checkpoint_blocks(model)
    except (ValueError, AttributeError) as error:
        raise UserError(
            "gradient_checkpointing",
            "this model does not support gradient checkpointing: set gradient_checkpointing to false",
            param="training.gradient_checkpointing",
        ) from error


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the initial weights of adapters, without changing the caller's random numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _unreadable(error: BaseException) -> ModelError:
    if "trust_remote_code" in str(error):
        return ModelError(
            "remote_code_refused",
            "the model needs code of its own, which the operator has not allowed for this model",
        )
    return ModelError("model_unreadable", f"transformers cannot load the model: {first_line(error)}")
