"""Evaluation: loss and accuracy over held-out label tokens, or pairs. It trains nothing and takes no random number."""

from dataclasses import astuple, dataclass

import numpy as np
import torch

from onyx.accumulation.exchange import Ballot
from onyx.memory.step import autocast
from onyx.training.cut import micro_batches
from onyx.training.order import Indices
from onyx.training.run import Run
from onyx.training.samples import Data, batch_of
from onyx.training.worker import Worker


@dataclass(frozen=True)
class Score:
    """Sums over label tokens, or pairs."""

    loss: float = 0.0
    correct: float = 0.0
    tokens: float = 0.0

    @property
    def mean_loss(self) -> float:
        return self.loss / self.tokens if self.tokens else float("nan")

    @property
    def accuracy(self) -> float:
        return self.correct / self.tokens if self.tokens else float("nan")

    def __add__(self, other: "Score") -> "Score":
        return Score(self.loss + other.loss, self.correct + other.correct, self.tokens + other.tokens)


def evaluate(run: Run, samples: Data) -> Score | None:
    """Every rank scores its share; all learn the sum. None when a rank was told to stop."""
    everything = np.arange(len(samples.lengths))
    mine = run.share_of(everything, samples)
    cut = micro_batches(mine, samples.lengths, run.budget, run.share.micro_batch_cost, joined=run.worker.joined)
    score = score_share(run.worker, samples, cut)
    result = run.ranks.vote(Ballot(stop=run.worker.stop.requested, told=astuple(score)))
    if result.stop:
        return None
    told = [Score(*result.told[start : start + 3]) for start in range(0, len(result.told), 3)]
    return sum(told, Score())


def score_share(worker: Worker, samples: Data, cut: list[Indices]) -> Score:
    """The scores of some micro-batches, or of those before the rank was told to stop."""
    score = Score()
    training = worker.model.training
    worker.model.eval()
    try:
        for chosen in cut:
            if worker.stop.requested:
                break
            score += _score(worker, samples, chosen)
    finally:
        worker.model.train(training)
    return score


@torch.no_grad()
def _score(worker: Worker, samples: Data, chosen: Indices) -> Score:
    batch = batch_of(samples, chosen, worker.device, joined=worker.joined)
    with autocast(worker.precision, worker.device.type):
        loss, correct = worker.objective.score(worker.model, batch)
    return Score(float(loss), float(correct), float(samples.weights[chosen].sum()))
