"""A run: everything that one rank trains with, in one value. The window to train next comes from it."""

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.optim import AdamW

from onyx.accumulation.rates import adjust_learning_rate
from onyx.accumulation.schedule import warmup
from onyx.training.contract.attempt import Attempt, Share
from onyx.training.packing.cut import shares
from onyx.training.packing.order import Indices, Order
from onyx.training.packing.samples import Data
from onyx.training.rank.optimizer import learning_rate
from onyx.training.rank.out_of_memory import ThrashDetector, allocator_retries
from onyx.training.rank.rank_group import Ranks
from onyx.training.rank.step import RankStep
from onyx.training.state.config_changes import ConfigChanges
from onyx.training.state.journal import Journal, Place
from onyx.training.state.progress import Progress, Steering
from onyx.training.state.recorder import Recorder

ENOUGH_SECONDS = 10.0
"""A shorter measurement says nothing: on a busy host a short job would make a fast device look slow."""


@dataclass
class Throughput:
    """Tokens, and the seconds that this rank worked on them."""

    tokens: int = 0
    seconds: float = 0.0
    _began: float | None = None
    _pending: int = 0

    def begin(self, tokens: int) -> None:
        """A share of so many tokens starts."""
        self._began, self._pending = time.monotonic(), tokens

    def end(self) -> None:
        """The share is done, on the device too. A share that `begin` did not announce (a warm-up) is not counted."""
        if self._began is not None:
            self.tokens += self._pending
            self.seconds += time.monotonic() - self._began
            self._began = None

    @property
    def seconds_per_token(self) -> float | None:
        """None before ENOUGH_SECONDS of work."""
        return self.seconds / self.tokens if self.tokens and self.seconds >= ENOUGH_SECONDS else None


@dataclass(frozen=True, kw_only=True)
class RankWindow:
    """A window as this rank sees it, before its first forward."""

    number: int
    """Windows closed before it."""

    samples: int
    """Of the whole window, over all ranks."""

    tokens: int
    weight: float
    """The window's label tokens or pairs, over all ranks."""

    share: Indices
    """This rank's samples."""

    rate: float
    """The learning rate of its update."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One rank of an attempt. Only `progress` and the measurements of memory and time change."""

    attempt: Attempt
    ranks: Ranks
    step: RankStep
    optimizer: AdamW
    order: Order
    progress: Progress
    journal: Journal
    config_changes: ConfigChanges
    recorder: Recorder
    thrash: ThrashDetector
    throughput: Throughput
    evaluation: Data | None
    tokenizer: Any

    @property
    def share(self) -> Share:
        """This rank's part in the plan."""
        return self.attempt.shares[self.ranks.rank]

    @property
    def budget(self) -> int:
        """Padded tokens of this rank's micro-batches."""
        return self.progress.steering.budgets[self.ranks.rank]

    @property
    def planned_budgets(self) -> tuple[int, ...]:
        """The plan's, of all ranks."""
        return tuple(share.token_budget for share in self.attempt.shares)

    def place(self, stretch: int | None = None) -> Place:
        """Where the job is now. `stretch` is the first one of the reference that is still to be computed."""
        pending = self.evaluation is not None and self.progress.epoch_is_over(self.order.count)
        return Place(window=self.progress.windows, evaluation=pending, stretch=stretch)

    def set_learning_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def steer(self, steering: Steering) -> None:
        """Make this the steering from here on."""
        self.progress.steering = steering
        compiled = self.step.compiled
        if steering.eager and compiled is not None and compiled.failed is None:
            compiled.give_up("the journal says so")

    def relaxed_budget(self) -> int:
        """The budget for the next share, halved when the allocator thrashes."""
        thrashes = self.thrash.detect(allocator_retries(self.step.device))
        return max(1, self.budget // 2) if thrashes else self.budget

    def share_of(self, chosen: Indices, samples: Data) -> Indices:
        """This rank's share of some samples."""
        plan = self.attempt.shares
        budget = sum(share.token_budget for share in plan) // len(plan)
        parts, cost = [share.share for share in plan], plan[0].micro_batch_cost
        found = shares(chosen, samples.lengths, parts, budget, cost, joined=self.step.joined)
        return found[self.ranks.rank]

    @property
    def accumulation_steps(self) -> int:
        """N: the user's, else the plan's."""
        planned = self.attempt.spec.accumulation_steps or self.attempt.plan.get("accumulation_steps")
        return int(planned or 1)

    def next_window(self) -> RankWindow:
        """The window to train now, steered by the journal."""
        progress, samples = self.progress, self.step.samples
        self.steer(self.journal.steering_for(progress.steering, progress.windows))
        window = self.order.window(progress.samples, self._size())
        return RankWindow(
            number=progress.windows,
            samples=len(window),
            tokens=int(samples.tokens[window].sum(dtype=np.int64)),
            weight=float(samples.weights[window].sum(dtype=np.int64)),
            share=self.share_of(window, samples),
            rate=self._rate(len(window)),
        )

    def window_of(self, accumulation_steps: int) -> int:
        """Samples of an update with another number of accumulation steps and micro-batches of the same size."""
        return self._unit * accumulation_steps

    @property
    def _unit(self) -> int:
        """Samples of an update per accumulation step."""
        return math.ceil(self.attempt.spec.window / self.accumulation_steps)

    def _size(self) -> int:
        """Samples of the next window: a function of steering and the update's number, so that resuming is exact."""
        spec, window = self.attempt.spec.training, self.progress.steering.window
        schedule = warmup(math.ceil(window / self._unit), spec.accumulation_warmup, spec.accumulation_scheduler)
        return min(window, self._unit * schedule.length(self.progress.update))

    def _rate(self, size: int) -> float:
        spec = self.attempt.spec.training
        peak = adjust_learning_rate(spec.learning_rate, self.accumulation_steps, rule=spec.learning_rate_rule)
        total = spec.epochs * self.order.count
        return learning_rate(spec, peak, position=self.progress.samples, size=size, total=total)
