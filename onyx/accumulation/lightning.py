"""Recognising a Lightning trainer without importing Lightning."""

from typing import Any


class ManagedTrainer:
    """A trainer that accumulates by itself: who asks it for steps must not accumulate too."""

    def __init__(self, trainer: Any, steps: int) -> None:
        self._trainer = trainer
        self.steps = steps
        """Batches it accumulates per update."""

    @property
    def global_step(self) -> int:
        """Updates it has made."""
        return int(self._trainer.global_step)


def managed(trainer: Any) -> ManagedTrainer | None:
    """The trainer, if it is a Lightning one that accumulates more than one batch."""
    if trainer is None or "Trainer" not in type(trainer).__name__:
        return None
    batches = getattr(trainer, "accumulate_grad_batches", 1)
    if isinstance(batches, dict):
        batches = batches.get(0, 1)
    if not isinstance(batches, int) or batches <= 1:
        return None
    return ManagedTrainer(trainer, batches)
