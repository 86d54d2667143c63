"""Evaluation: loss and accuracy over held-out label tokens. It trains nothing and consumes no random number."""

from dataclasses import astuple, dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from onyx.accumulation.exchange import Ballot
from onyx.memory.step import IGNORED, autocast
from onyx.training.cut import micro_batches
from onyx.training.order import Indices
from onyx.training.run import Run
from onyx.training.samples import Samples, batch_of
from onyx.training.worker import Worker


@dataclass(frozen=True)
class Score:
    """Sums over label tokens."""

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


def evaluate(run: Run, samples: Samples) -> Score | None:
    """Every rank scores its share; all learn the sum. None when a rank was told to stop."""
    everything = np.arange(len(samples.lengths))
    mine = run.share_of(everything, samples)
    score = score_share(run.worker, samples, micro_batches(mine, samples.lengths, run.budget))
    result = run.ranks.vote(Ballot(stop=run.worker.stop.requested, told=astuple(score)))
    if result.stop:
        return None
    told = [Score(*result.told[start : start + 3]) for start in range(0, len(result.told), 3)]
    return sum(told, Score())


def score_share(worker: Worker, samples: Samples, cut: list[Indices]) -> Score:
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
def _score(worker: Worker, samples: Samples, chosen: Indices) -> Score:
    batch = batch_of(samples, chosen, worker.device)
    with autocast(worker.precision, worker.device.type):
        logits = _logits(worker.model, batch.input_ids).flatten(0, -2).float()
        labels = batch.labels.flatten()
        loss = functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    correct = ((logits.argmax(-1) == labels) & (labels != IGNORED)).sum()
    return Score(float(loss), float(correct), float(samples.weights[chosen].sum()))


def _logits(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=tokens, use_cache=False).logits
    return logits
