"""What a training process takes beyond its live tensors: measured per machine, or said to be assumed.

Needs no torch.
"""

import json
import platform
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Self

from onyx.memory.devices.device import Device, Kind
from onyx.memory.footprint.footprint import Footprint
from onyx.memory.footprint.json_cache import Cache, versions
from onyx.memory.recipe import Recipe

GIB = 2**30

CAUTION = 0.25
"""How far a plan goes from the expected overhead to the high one."""


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """A line: bytes taken = fixed + slack × bytes of live tensors."""

    fixed: int
    """Bytes that a process takes before any tensor: libraries' own tables, a CUDA context."""

    slack: float
    """How much more the allocator holds than is alive."""

    fixed_high: int
    """The largest `fixed` that was seen, or must be reckoned with."""

    slack_high: float
    """The same for `slack`."""

    measured: bool
    """False: nobody has run on such a device here, and the figures are those that others published."""

    def expected(self, live: float) -> int:
        """Bytes that the process takes when `live` bytes of tensors are alive."""
        return int(self.fixed + self.slack * live)

    def high(self, live: float) -> int:
        """Bytes that it may take."""
        return int(self.fixed_high + self.slack_high * live)

    def cautious(self, live: float) -> int:
        """Bytes that a plan reckons with: a quarter of the way from what is expected to what may be.

        What is expected is met from both sides (measured: by 1 %), and a plan must hold every time.
        """
        return int(self._cautious_fixed + self._cautious_slack * live)

    def live(self, size: float) -> float:
        """The bytes of tensors for which a plan reckons with `size`."""
        return (size - self._cautious_fixed) / self._cautious_slack

    @property
    def _cautious_fixed(self) -> float:
        return self.fixed + CAUTION * (self.fixed_high - self.fixed)

    @property
    def _cautious_slack(self) -> float:
        return self.slack + CAUTION * (self.slack_high - self.slack)

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` wrote; ValueError when the text is not that."""
        try:
            return cls(**json.loads(text))
        except TypeError as problem:
            raise ValueError(f"not a stored overhead: {problem}") from problem


ASSUMED_CUDA = Overhead(fixed=GIB // 2, slack=1.08, fixed_high=int(1.4 * GIB), slack_high=1.41, measured=False)
"""For cards that are not here. Published: 0.3 to 1.4 GB per process, 1.08 to 1.41 reserved per allocated byte."""


NO_MATTER = ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype", "id2label", "label2id")
"""What a config says that no allocation depends on, or that the key holds in another form."""


def footprint_of(config: Any, recipe: Recipe, kind: Kind) -> Footprint:
    """The footprint of a recipe whose config is loaded, on a device of that kind."""
    from onyx.memory.footprint.model_builder import check_length

    check_length(config, recipe)
    cache, key = Cache("footprints"), footprint_key(config, recipe, kind)
    stored = cache.read(key)
    if stored is not None:
        with suppress(ValueError):  # written by something else: computed again, and written over
            return Footprint.from_json(stored)
    from onyx.memory.footprint.estimate import estimate

    found = estimate(config, recipe, kind)
    cache.write(key, found.to_json())
    return found


def footprint_key(config: Any, recipe: Recipe, kind: Kind) -> dict[str, Any]:
    """All that a footprint depends on. Of max_length only whether it reaches the model's sliding window."""
    from onyx.memory.footprint.model_builder import beyond_window, is_causal

    content = {name: value for name, value in config.to_dict().items() if name not in NO_MATTER}
    return {
        "config": content,
        "labels": getattr(config, "num_labels", None),
        "attention": getattr(config, "_attn_implementation", None),
        "causal": is_causal(config, recipe),
        "method": recipe.method,
        "lora": asdict(recipe.lora) if recipe.method == "lora" else None,
        "precision": recipe.precision,
        "gradient_checkpointing": recipe.gradient_checkpointing,
        "objective": recipe.objective,
        "beyond_window": beyond_window(config, recipe.max_length),
        "kind": kind,
        "versions": versions(),
    }


def overhead_of(device: Device) -> Overhead:
    """Of a process on that device. The CPU's is measured when it is not known; a card's where the card is."""
    cache, key = Cache("overheads"), _overhead_key(device.kind, device.name)
    stored = cache.read(key)
    if stored is not None:
        with suppress(ValueError):
            return Overhead.from_json(stored)
    if device.kind == "cuda":
        return ASSUMED_CUDA
    from onyx.memory.footprint.calibrate import measure_cpu

    found = measure_cpu()
    cache.write(key, found.to_json())
    return found


def store_overhead(name: str, overhead: Overhead) -> None:
    """What a rank measured on a card of that name, for later plans."""
    Cache("overheads").write(_overhead_key("cuda", name), overhead.to_json())


def _overhead_key(kind: Kind, name: str) -> dict[str, Any]:
    where = {"machine": platform.node(), "kernel": platform.release()} if kind == "cpu" else {"name": name}
    return {"kind": kind, "versions": versions(), **where}
