"""How long a step takes, from real probes on the device. Needs no torch."""

import hashlib
import json
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from onyx.memory.devices.device import Device
from onyx.memory.footprint.json_cache import Cache
from onyx.memory.footprint.stored import footprint_key
from onyx.memory.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds of one device's work: micro-batch = fixed + tokens × per token."""

    per_micro_batch: float
    """Seconds that every micro-batch costs, however small."""

    per_token: float
    """Seconds per padded token, forward and backward."""

    per_update: float
    """Seconds for clipping and the optimizer's step."""

    def seconds(self, *, micro_batches: int, tokens: float) -> float:
        """Seconds of one update."""
        return self.per_update + micro_batches * self.per_micro_batch + tokens * self.per_token

    @classmethod
    def through(cls, seconds: Mapping[int, float], *, per_update: float = 0.0) -> Self:
        """A line through the smallest and the largest of some micro-batches: seconds by padded tokens."""
        if len(seconds) < 2:
            raise ValueError("shapes must differ in samples × length: a line needs two points")
        (few, quick), (many, slow) = min(seconds.items()), max(seconds.items())
        per_token = max(0.0, (slow - quick) / (many - few))
        return cls(per_micro_batch=max(0.0, quick - few * per_token), per_token=per_token, per_update=per_update)

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` wrote; ValueError when the text is not that."""
        try:
            return cls(**{name: float(value) for name, value in json.loads(text).items()})
        except (TypeError, AttributeError) as problem:
            raise ValueError(f"not a stored timing: {problem}") from problem


def timing_key(config: Any, recipe: Recipe, device: Device, *, compiled: bool = False) -> str:
    """A digest of all that a timing depends on. The plan carries it, so that ranks need not make it again."""
    key = footprint_key(config, recipe, device.kind)
    key.pop("beyond_window")
    if recipe.method == "lora":  # a plan without a job does not know yet which layers will be adapted
        key["lora"] = {"r": recipe.lora.r, "dropout": recipe.lora.dropout}
    key |= {"name": device.name, "threads": device.cores}
    if compiled:
        key["compiled"] = True
    return hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()


def device_timing_key(key: str, label: str, uuid: str | None) -> str:
    """The key for one device of this host alone: another of its kind may be throttled, or shared with other work."""
    return f"{key}@{uuid or f'{socket.gethostname()}/{label}'}"


def stored_timing(key: str) -> Timing | None:
    """What a rank has measured, or None."""
    stored = Cache("timings").read({"timing": key})
    if stored is None:
        return None
    try:
        return Timing.from_json(stored)
    except ValueError:
        return None


def store_timing(key: str, timing: Timing) -> None:
    """Keep what a rank measured, for later plans."""
    Cache("timings").write({"timing": key}, timing.to_json())
