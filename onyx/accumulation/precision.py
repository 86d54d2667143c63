"""Precisions: which autocast forward runs under, and whether the loss must be scaled.

Trainable weights, gradients and optimizer state are always float32. On the CPU float16 is far slower than float32, and
bfloat16 can kill the process (an instruction that the CPU advertises and does not have). So on the CPU mixed precision
means float32, unless the user chose bfloat16 and a child process has run it without dying.
"""

import functools
import logging
import subprocess
import sys
from contextlib import AbstractContextManager
from enum import StrEnum

import torch

logger = logging.getLogger(__name__)

_BF16_PROBE = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); b = (a @ a).float(); assert b[0, 0] == 64"


class Precision(StrEnum):
    """The dtype that forward computes in."""

    FLOAT32 = "float32"
    BF16 = "bf16"
    FP16 = "fp16"

    @property
    def dtype(self) -> torch.dtype:
        return {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[self.value]


def resolve(dtype: torch.dtype, device: torch.device) -> Precision:
    """The precision to use on `device` for mixed training in `dtype`."""
    if dtype == torch.float32:
        return Precision.FLOAT32
    if dtype not in (torch.float16, torch.bfloat16):
        raise ValueError(f"mixed precision runs in torch.float16, torch.bfloat16 or torch.float32, got {dtype}")
    if device.type != "cpu":
        return Precision.BF16 if dtype == torch.bfloat16 else Precision.FP16
    if dtype == torch.bfloat16 and cpu_survives_bf16():
        return Precision.BF16
    return Precision.FLOAT32


def autocast(
    precision: Precision, device: torch.device, memory_efficient: bool = False
) -> AbstractContextManager[object]:
    """The context for forward. `memory_efficient` keeps no half-precision copies of the weights between uses."""
    return torch.autocast(
        device.type,
        dtype=None if precision is Precision.FLOAT32 else precision.dtype,
        enabled=precision is not Precision.FLOAT32,
        cache_enabled=not memory_efficient,
    )


def grad_scaler(precision: Precision, device: torch.device, init_scale: float = 2.0**16) -> torch.amp.GradScaler:
    """A scaler for `precision`: enabled for float16 only; disabled it does nothing."""
    return torch.amp.GradScaler(device.type, init_scale=init_scale, enabled=precision is Precision.FP16)


@functools.cache
def cpu_survives_bf16() -> bool:
    """Whether a child process runs a bfloat16 matrix product on this CPU without dying."""
    child = subprocess.run([sys.executable, "-c", _BF16_PROBE], capture_output=True, check=False, timeout=120)  # noqa: S603
    if child.returncode != 0:
        logger.warning("bfloat16 does not run on this CPU (exit status %s): using float32", child.returncode)
    return child.returncode == 0
