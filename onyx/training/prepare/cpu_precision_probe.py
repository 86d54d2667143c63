"""Whether a half precision works on this CPU: a child process tries it, because it may crash.

Libraries choose instructions by the flags that the CPU reports, and a virtual machine may report too many. A bf16
matmul then ends by SIGILL, which no `except` catches. The child is
`python -m onyx.training.prepare.cpu_precision_probe <precision>`.
"""

import logging
import platform
import signal
import subprocess
import sys
from pathlib import Path
from typing import Literal

from onyx.memory.footprint.json_cache import Cache, versions

logger = logging.getLogger(__name__)

Half = Literal["bf16", "fp16"]

SECONDS = 120.0
"""The child's time limit. Most of its time is the import of torch; a CPU that needs longer could not train anyway."""

_WORKS = "works"

_TIMED_OUT = "it took more than"

_TEMPORARY = (_TIMED_OUT, "it was killed by SIGKILL", "it was killed by SIGTERM", "it failed: MemoryError")
"""Failures of a busy machine rather than of its CPU. They decide the current plan only and are not cached."""

FORMAT = 2
"""The format of the cache. Format 1 also had time-outs."""


def precision_trouble(precision: Half) -> str | None:
    """How a step in this precision fails on this CPU; None if it works. Cached per machine and library versions."""
    cache = Cache("trials")
    key = {"trial": FORMAT, "precision": precision, "cpu": _cpu(), "versions": versions()}
    known = cache.read(key)
    if known is None:
        known = _try([sys.executable, "-m", "onyx.training.prepare.cpu_precision_probe", precision])
        logger.info("a step in %s on this CPU: %s", precision, known, extra={"action": "precision_tried"})
        if not known.startswith(_TEMPORARY):
            cache.write(key, known)
    return None if known == _WORKS else known


def _try(command: list[str], seconds: float = SECONDS) -> str:
    """How the command ended, as text."""
    try:
        child = subprocess.run(  # noqa: S603 - this interpreter with constant arguments
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return f"{_TIMED_OUT} {seconds:g} seconds"
    if child.returncode == 0:
        return _WORKS
    if child.returncode < 0:
        return f"it was killed by {signal.Signals(-child.returncode).name}"
    lines = child.stderr.decode(errors="replace").strip().splitlines()
    return f"it failed: {lines[-1][:200]}" if lines else f"it ended with status {child.returncode}"


def _cpu() -> str:
    """The CPU's name and the instructions that it reports."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0].splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    fields = ("model name", "stepping", "flags", "microcode", "Features", "CPU part")
    return "\n".join(line for line in lines if line.startswith(fields))


def step(precision: Half) -> None:
    """Forward and backward of a small block with its loss, in small and large shapes, which use different kernels."""
    import torch
    from torch.nn import functional

    dtype = torch.bfloat16 if precision == "bf16" else torch.float16
    torch.set_num_threads(1)
    for tokens, width in ((3, 8), (64, 64), (130, 192)):
        weight = torch.randn(width, width, requires_grad=True)
        frozen = torch.randn(width, width, dtype=dtype)
        states = torch.randn(2, tokens, width)
        with torch.autocast("cpu", dtype=dtype):
            states = functional.linear(functional.linear(states, weight), frozen)
            heads = states.view(2, tokens, 4, width // 4).transpose(1, 2)
            heads = functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
            logits = functional.linear(heads.transpose(1, 2).flatten(2), weight)
        functional.cross_entropy(logits.flatten(0, 1).float(), torch.zeros(2 * tokens, dtype=torch.long)).backward()


if __name__ == "__main__":
    step("fp16" if sys.argv[1] == "fp16" else "bf16")
