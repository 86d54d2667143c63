"""Document 002's API object: one accumulator per training id."""

from typing import Any

from onyx.accumulation.ads.accumulator import GradientAccumulator
from onyx.accumulation.ads.config import GradientAccumulationConfig


class GradientAccumulationAPI:
    """Keeps the accumulators of several trainings apart."""

    def __init__(self) -> None:
        self._accumulators: dict[str, GradientAccumulator] = {}

    def create_accumulator(self, config: GradientAccumulationConfig, training_id: str) -> str:
        """Create an accumulator for a training. Returns the id."""
        if not isinstance(training_id, str) or not training_id:
            raise ValueError(f"training_id must be a name that is not empty, got {training_id!r}")
        if training_id in self._accumulators:
            raise ValueError(f"Training ID {training_id} exists already: clean it up first or choose another")
        self._accumulators[training_id] = GradientAccumulator(config)
        return training_id

    def get_accumulator(self, training_id: str) -> GradientAccumulator:
        """The accumulator of a training, to train with."""
        try:
            return self._accumulators[training_id]
        except KeyError:
            raise ValueError(f"Training ID {training_id} not found") from None

    def get_accumulation_stats(self, training_id: str) -> dict[str, Any]:
        """The statistics of its accumulator."""
        return self.get_accumulator(training_id).get_accumulation_stats()

    def update_config(self, training_id: str, config: GradientAccumulationConfig) -> None:
        """Replace the config of a training. It applies from the next window on."""
        self.get_accumulator(training_id).config = config

    def cleanup(self, training_id: str) -> None:
        """Forget a training and drop the gradients of its open window. An unknown id is fine."""
        accumulator = self._accumulators.pop(training_id, None)
        if accumulator is not None:
            accumulator.reset_accumulation()

    def cleanup_all(self) -> None:
        """Forget all trainings."""
        for training_id in list(self._accumulators):
            self.cleanup(training_id)
