"""The reference of preference training: the log-probability of each answer before training.

It is computed before the first update, in eval mode and with adapters switched off, and stored with the job. So no
second copy of the model is needed, later epochs pay nothing, and an attempt that resumes reads the numbers that the
first one computed. Ranks compute it in stretches of pairs, so that a kill costs one stretch.

The plan and the journal decide how a stretch is cut. Rank 0 writes a finer cut to the journal before it stores the
stretch: when a rank dies between the two, the next attempt cuts the stretch by that line.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from onyx import fs
from onyx.memory.footprint.training_step import log_probabilities
from onyx.recipe.model import autocast
from onyx.training.contract import event_kinds
from onyx.training.contract.errors import UserError
from onyx.training.data.token_store import PreferencePairs
from onyx.training.packing.order import Indices
from onyx.training.packing.samples import batch_of
from onyx.training.rank.run import Run
from onyx.training.rank.share import FittedCut, TooLarge, cut_until_it_fits, run_all
from onyx.training.rank.step import RankStep
from onyx.training.rank.vote import agree_on

STRETCH = 512
"""Pairs that are computed, agreed on and stored together."""

NUMBERS = "log_probabilities.npy"


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Some pairs of one part of the data."""

    number: int
    """How many stretches come before it. Those of the training data come first."""

    name: str
    pairs: PreferencePairs
    chosen: Indices


def missing_stretches(run: Run) -> list[Stretch]:
    """Load the stored stretches and return the others, in their order."""
    if not isinstance(run.step.samples, PreferencePairs):
        return []
    folder = _folder(run)
    stored = set(json.loads(run.ranks.broadcast(json.dumps(_stored(folder)) if run.ranks.first else "")))
    left = []
    for stretch in _stretches(run):
        if stretch.name in stored:
            stretch.pairs.reference[stretch.chosen] = np.load(folder / stretch.name / NUMBERS)
        else:
            left.append(stretch)
    if left and run.progress.update and run.attempt.spec.training.method == "full":
        raise UserError(
            "reference_lost",
            "what the model was before training is gone from the job's directory, and cannot be computed from weights "
            "that were trained since: start the job again",
        )
    return left


def make_reference(run: Run, missing: list[Stretch]) -> bool:
    """Compute what is missing. False when a rank was asked to stop."""
    if not missing:
        return True
    with _as_before_training(run.step.model):
        return all(_compute(run, stretch) for stretch in missing)


def _compute(run: Run, stretch: Stretch) -> bool:
    """Every rank computes its share, all get the whole, rank 0 stores it. False when a rank was asked to stop."""
    pairs, chosen = stretch.pairs, stretch.chosen
    mine = np.zeros((len(chosen), 2), dtype=np.float32)
    share = run.share_of(chosen, pairs)
    budgets = run.journal.budgets_of_stretch(run.planned_budgets, stretch.number)
    fitted = _fill(run.step, pairs, share, budgets[run.ranks.rank], run.share.micro_batch_cost)
    mine[np.searchsorted(chosen, share)] = pairs.reference[share]
    parts = agree_on(run, fitted, mine.ravel().tolist(), run.place(stretch.number), budgets)
    if parts is None:
        return False
    # One rank computed each pair; all others sent 0.
    pairs.reference[chosen] = np.array(parts).sum(axis=0).reshape(-1, 2)
    if run.ranks.first:
        run.recorder.refuse_if_superseded()
        with fs.publish_directory(_folder(run) / stretch.name) as part:
            np.save(part / NUMBERS, pairs.reference[chosen])
        run.recorder.events.emit(event_kinds.MESSAGE, f"reference log-probabilities of {stretch.name} are computed")
    return True


def _fill(step: RankStep, pairs: PreferencePairs, share: Indices, budget: int, cost: int) -> FittedCut:
    """Compute the reference of a share. Where memory runs out, all of the share is cut finer."""

    def run_one(chosen: Indices) -> None:
        batch = batch_of(pairs, chosen, step.device)
        with autocast(step.precision, step.device.type):
            computed = log_probabilities(step.model, batch).float().cpu()
        pairs.reference[chosen] = computed.reshape(-1, 2).numpy()

    def run(cut: list[Indices]) -> TooLarge | None:
        return run_all(step, cut, run_one)

    return cut_until_it_fits(step, pairs, share, budget=budget, cost=cost, run=run)


@contextmanager
def _as_before_training(model: Any) -> Iterator[None]:
    """Without dropout and gradients, and with the adapter, if there is one, switched off."""
    model.eval()
    try:
        with torch.no_grad(), _without_adapter(model):
            yield
    finally:
        model.train()


@contextmanager
def _without_adapter(model: nn.Module) -> Iterator[None]:
    if not hasattr(model, "peft_config"):
        yield
        return
    with model.disable_adapter():  # type: ignore[operator]
        yield


def _stretches(run: Run) -> Iterator[Stretch]:
    parts = (("training", run.step.samples), ("evaluation", run.evaluation))
    starts = [
        (part, pairs, start)
        for part, pairs in parts
        if isinstance(pairs, PreferencePairs)
        for start in range(0, len(pairs), STRETCH)
    ]
    for number, (part, pairs, start) in enumerate(starts):
        chosen = np.arange(start, min(start + STRETCH, len(pairs)))
        yield Stretch(number=number, name=f"{part}-{start:08}", pairs=pairs, chosen=chosen)


def _stored(folder: Path) -> list[str]:
    """The names of the stored stretches. A stretch gets its name once all of it is written."""
    if not folder.is_dir():
        return []
    fs.sweep(folder)
    return sorted(path.name for path in folder.iterdir() if (path / NUMBERS).is_file())


def _folder(run: Run) -> Path:
    """The folder of this model and this data. Another model or other data have another reference."""
    text = f"{run.attempt.model_dir}\0{run.attempt.data_dir.name}"
    return run.attempt.job_dir / f"reference-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
