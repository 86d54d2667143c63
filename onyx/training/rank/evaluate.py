"""Evaluation: loss and accuracy over held-out label tokens, or pairs. It trains nothing and uses no random number."""

from dataclasses import astuple, dataclass

import numpy as np
import torch

from onyx.recipe.model import autocast
from onyx.training.packing.order import Indices
from onyx.training.packing.samples import Data, batch_of
from onyx.training.rank.run import Run
from onyx.training.rank.share import FittedCut, TooLarge, cut_until_it_fits, run_all
from onyx.training.rank.step import RankStep
from onyx.training.rank.vote import agree_on


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
    """Every rank scores its share and all get the sum. None when a rank was asked to stop.

    The score decides about early stopping and the best snapshot, so its cut is in the journal.
    """
    place = run.place()
    run.steer(run.journal.steering_for(run.progress.steering, place.window, evaluation=True))
    mine = run.share_of(np.arange(len(samples.lengths)), samples)
    fitted, score = score_share(run.step, samples, mine, run.budget, run.share.micro_batch_cost)
    scores = agree_on(run, fitted, astuple(score), place, run.progress.steering.budgets)
    return None if scores is None else sum((Score(*each) for each in scores), Score())


def score_share(step: RankStep, samples: Data, share: Indices, budget: int, cost: int) -> tuple[FittedCut, Score]:
    """The score of a share, or of a part of it when the rank was asked to stop."""
    score = Score()

    def run(cut: list[Indices]) -> TooLarge | None:
        nonlocal score
        score = Score()
        return run_all(step, cut, score_one)

    def score_one(chosen: Indices) -> None:
        nonlocal score
        score += _score(step, samples, chosen)

    training = step.model.training
    step.model.eval()
    try:
        fitted = cut_until_it_fits(step, samples, share, budget=budget, cost=cost, run=run)
    finally:
        step.model.train(training)
    return fitted, score


@torch.no_grad()
def _score(step: RankStep, samples: Data, chosen: Indices) -> Score:
    batch = batch_of(samples, chosen, step.device, joined=step.joined)
    with autocast(step.precision, step.device.type):
        loss, correct = step.objective.score(step.model, batch)
    return Score(float(loss), float(correct), float(samples.weights[chosen].sum()))
