"""Where training is, between two windows: all that a resumed attempt needs besides tensors."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from onyx.training.contract.spec import Frozen


class Steering(Frozen):
    """The settings of the windows to come. Only a line of the journal changes them."""

    budgets: tuple[int, ...]
    """Padded tokens of one micro-batch, per rank."""

    window: int
    """Samples of one update."""

    clipping: float | None
    config: int = 0
    """The number of the last change of config that took effect."""

    eager: bool = False
    """Whether the step is no longer compiled, although the plan compiles it."""


class EpochSums(BaseModel):
    """Sums of the current epoch, over label tokens or pairs."""

    loss: float = 0.0
    right: float = 0.0
    weight: float = 0.0

    @property
    def mean(self) -> float | None:
        return self.loss / self.weight if self.weight else None

    @property
    def accuracy(self) -> float | None:
        return self.right / self.weight if self.weight else None

    def add(self, loss: float, weight: float, correct: float) -> None:
        self.loss += loss
        self.right += correct
        self.weight += weight


class Progress(BaseModel):
    """Counters and means. The same on every rank."""

    model_config = ConfigDict(extra="forbid")

    steering: Steering
    samples: int = 0
    """Samples trained over all epochs: the position in the order."""

    windows: int = 0
    """Windows closed: updates and skips."""

    update: int = 0
    skipped_not_finite: int = 0
    skipped_no_weight: int = 0
    not_finite_in_a_row: int = 0
    trained_tokens: int = 0
    epoch: EpochSums = Field(default_factory=EpochSums)
    """Of the current epoch."""

    last_loss: float | None = None
    epochs: list[dict[str, Any]] = []
    """The result of each closed epoch."""

    best_evaluation: float | None = None
    evaluations_without_improvement: int = 0
    stopped_early: bool = False
    widest: int = 0
    """Samples of the largest micro-batch."""

    peaks: list[int] = []
    """The most bytes that each rank has allocated."""

    seconds: float = 0.0
    """Of training, over all attempts."""

    scaler: dict[str, Any] = {}
    """The loss scaler's state; empty where nothing is scaled."""

    @property
    def skipped(self) -> int:
        return self.skipped_not_finite + self.skipped_no_weight

    def epoch_is_over(self, count: int) -> bool:
        """Whether all `count` samples of an epoch are trained and the epoch is not closed yet."""
        return self.samples // count > len(self.epochs)

    def is_over(self, epochs: int) -> bool:
        return self.stopped_early or len(self.epochs) >= epochs
