"""Whether a job's samples are joined in one row or padded to rows of one length. Decided once, with the plan."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onyx.memory.planner import PlanRequest

FAMILIES = (
    *("cohere", "gemma", "gpt2", "gpt_neox", "granite", "llama", "mistral", "olmo", "olmo2"),
    *("phi", "phi3", "qwen2", "qwen3", "smollm3", "stablelm", "starcoder2"),
)
"""Model types whose attention is known to be the only place where tokens meet, and to be replaceable."""


def joins(config: Any, request: "PlanRequest", labels: Iterable[str]) -> bool:
    """Jobs of such models on CPUs. On a card each run of samples would be more kernels to launch."""
    on_cpu = all(label.startswith("cpu") for label in labels)
    return request.quick and on_cpu and request.recipe.objective == "sft" and _joinable(config, request.longest)


def _joinable(config: Any, length: int) -> bool:
    """Neither code of its own, nor dropout inside of attention, nor a window that samples of that length meet."""
    from onyx.memory.model import ATTENTION_DROPOUTS, beyond_window

    plain = config.model_type in FAMILIES and not getattr(config, "auto_map", None)
    drops = any(getattr(config, name, None) for name in ATTENTION_DROPOUTS)
    return plain and not drops and not beyond_window(config, length)
