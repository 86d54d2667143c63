"""Why a plan cannot be made. All are ValueErrors: each message says what to change."""

from dataclasses import dataclass

GIB = 2**30


class PlanError(ValueError):
    """No plan can be made from the request."""


class ModelNotFoundError(PlanError):
    """No config was found under that name."""


class ModelConfigError(PlanError):
    """There is a config, but no model that Onyx trains can be built from it."""


class SampleShapeError(PlanError):
    """The shape of one sample of a plain torch module was not given, and cannot be inferred."""


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """One change to the recipe that would fit."""

    change: str
    """In a user's words: "LoRA r=8", "gradient checkpointing", "max_length 256"."""

    needs: int
    """Bytes at micro-batch 1 after the change."""


class DoesNotFitError(PlanError):
    """Not even a micro-batch of one sample fits; `alternatives` are changes with which one would."""

    def __init__(self, *, needs: int, length: int, shortages: dict[str, int], alternatives: list[Alternative]) -> None:
        self.needs = needs
        self.length = length
        self.shortages = shortages
        self.alternatives = alternatives
        have = ", ".join(f"{label} has {gigabytes(usable)}" for label, usable in shortages.items())
        fits = ", ".join(f"{each.change} ({gigabytes(each.needs)})" for each in alternatives)
        way_out = f"Fits with: {fits}" if fits else "No change that Onyx knows makes it fit: take a larger device"
        super().__init__(f"needs {gigabytes(needs)} at micro-batch 1 × {length} tokens; {have}. {way_out}")


def gigabytes(size: float) -> str:
    """Binary gigabytes, as card makers count them; small amounts in MB, so that none reads as 0.0 GB."""
    return f"{size / GIB:.1f} GB" if size >= GIB else f"{size / 2**20:.0f} MB"
