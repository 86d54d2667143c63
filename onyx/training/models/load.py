"""From a directory to the model that a rank trains."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from onyx.memory.cpu import is_out_of_memory
from onyx.training.errors import ModelError, UserError
from onyx.training.models.exactness import drop_balance_loss
from onyx.training.spec import LoraSpec

Precision = Literal["float32", "bf16", "fp16"]
FROZEN_DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def load_config(directory: Path, *, remote_code: bool = False) -> Any:
    """The model's config, as it is trained."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(str(directory), local_files_only=True, trust_remote_code=remote_code)
    except Exception as error:  # a config can be wrong in as many ways as models read it
        raise _unreadable(error) from error
    config.use_cache = False
    drop_balance_loss(config)
    return config


def build_empty(config: Any, *, remote_code: bool = False) -> nn.Module:
    """The model on the meta device: its structure without its weights."""
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model: nn.Module = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, trust_remote_code=remote_code
            )
    except Exception as error:  # as above
        raise _unreadable(error) from error
    return model


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
    """The model in training mode: what is trained in float32, what is frozen in the precision's dtype.

    The same directory, adapter and seed give the same bits on every rank and every attempt.
    """
    dtype = FROZEN_DTYPES[precision] if method == "lora" else torch.float32
    with _seeded(seed):
        model = _read(directory, dtype, remote_code)
        copy_from_file(model)
        if method == "lora":
            model = with_lora(model, lora or LoraSpec())
    if gradient_checkpointing:
        _checkpoint(model)
    return model.to(device).train()


def copy_from_file(model: nn.Module) -> None:
    """Give each weight memory of its own: a mapped file escapes the rlimit that makes a shortage an exception."""
    with torch.no_grad():
        for each in (*model.parameters(), *model.buffers()):
            each.data = each.data.clone()


def with_lora(model: nn.Module, lora: LoraSpec) -> nn.Module:
    """The model frozen, with adapters beside it that are trained in float32."""
    from peft import LoraConfig, get_peft_model

    targets = lora.target_modules
    options: dict[str, Any] = {
        "r": lora.r,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": targets if targets is None or isinstance(targets, str) else list(targets),
        "task_type": "CAUSAL_LM",
        # PEFT warns that Conv1D weights lie transposed and handles them; that is no finding for the user.
        "fan_in_fan_out": any(type(each).__name__ == "Conv1D" for each in model.modules()),
    }
    try:
        adapted: nn.Module = get_peft_model(model, LoraConfig(**options))
    except ValueError as error:
        raise UserError(
            "lora_target_modules",
            f"the adapter's target_modules do not suit this model: {_line(error)}",
            param="training.lora.target_modules",
        ) from error
    for each in adapted.parameters():
        if each.requires_grad:
            each.data = each.data.float()
    return adapted


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
    except Exception as error:  # files can be damaged in as many ways
        if is_out_of_memory(error):
            raise
        raise _unreadable(error) from error
    model: nn.Module = loaded[0]
    lacking = sorted(loaded[1]["missing_keys"])
    if lacking:
        raise ModelError(
            "model_incomplete",
            f"the model's files lack {len(lacking)} of its weights ({lacking[0]} …): they would be random",
        )
    return model


def _checkpoint(model: nn.Module) -> None:
    try:
        # Not the reentrant kind: it needs an input with a gradient, which frozen embeddings do not give.
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})  # type: ignore[operator]
    except (ValueError, AttributeError) as error:
        raise UserError(
            "gradient_checkpointing",
            "this model does not support gradient checkpointing: set gradient_checkpointing to false",
            param="training.gradient_checkpointing",
        ) from error


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Adapters start from the spec's seed, and the caller's stream is left where it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _unreadable(error: BaseException) -> ModelError:
    if "trust_remote_code" in str(error):
        return ModelError(
            "remote_code_refused",
            "the model needs code of its own to run, which the operator has not allowed for this model",
        )
    return ModelError("model_unreadable", f"transformers cannot load the model: {_line(error)}")


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).split("\n", 1)[0]
