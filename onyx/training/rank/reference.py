"""The reference of preference training: what the model thought of each answer before it was trained.

Its log-probabilities are computed before the first update, in eval mode and with adapters switched off, and kept with
the job: no second copy of the model is ever needed, later epochs pay nothing, and an attempt that resumes reads the
numbers that the first one computed. PreferencePairs are done in stretches, so that a kill costs one stretch.

How a stretch is cut follows from the plan and the journal. Rank 0 writes a finer cut to the journal before it stores
the stretch: when a rank dies between the two, the next attempt computes the stretch by that line.
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
from onyx.recipe.autocast import autocast
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
"""PreferencePairs that are done, agreed on and stored together."""

NUMBERS = "log_probabilities.npy"


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Some pairs of one part of the data."""

    number: int
    """Stretches before it: those of the training data come first."""

    name: str
    pairs: PreferencePairs
    chosen: Indices


def missing_stretches(run: Run) -> list[Stretch]:
    """Fill in what is stored; the stretches that are not, in their order."""
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
    """Compute what is missing. False when a rank was told to stop."""
    if not missing:
        return True
    with _as_it_was(run.step.model):
        return all(_compute(run, stretch) for stretch in missing)


def _compute(run: Run, stretch: Stretch) -> bool:
    """Every rank does its share, all learn the whole, and rank 0 stores it. False when a rank was told to stop."""
    pairs, chosen = stretch.pairs, stretch.chosen
    mine = np.zeros((len(chosen), 2), dtype=np.float32)
    share = run.share_of(chosen, pairs)
    budgets = run.journal.budgets_of_stretch(run.planned_budgets, stretch.number)
    fitted = _fill(run.step, pairs, share, budgets[run.ranks.rank], run.share.micro_batch_cost)
    mine[np.searchsorted(chosen, share)] = pairs.reference[share]
    told = agree_on(run, fitted, mine.ravel().tolist(), run.place(stretch.number), budgets)
    if told is None:
        return False
    # Each pair was done by one rank; all others told 0.
    pairs.reference[chosen] = np.array(told).sum(axis=0).reshape(-1, 2)
    if run.ranks.first:
        run.recorder.refuse_if_superseded()
        with fs.publish_directory(_folder(run) / stretch.name) as part:
            np.save(part / NUMBERS, pairs.reference[chosen])
        run.recorder.events.emit(event_kinds.MESSAGE, f"reference log-probabilities of {stretch.name} are computed")
    return True


def _fill(step: RankStep, pairs: PreferencePairs, share: Indices, budget: int, cost: int) -> FittedCut:
    """The reference of a share, all of it cut finer where memory runs out."""

    def one(chosen: Indices) -> None:
        batch = batch_of(pairs, chosen, step.device)
        with autocast(step.precision, step.device.type):
            found = log_probabilities(step.model, batch).float().cpu()
        pairs.reference[chosen] = found.reshape(-1, 2).numpy()

    def run(cut: list[Indices]) -> TooLarge | None:
        return run_all(step, cut, one)

    return cut_until_it_fits(step, pairs, share, budget=budget, cost=cost, run=run)


@contextmanager
def _as_it_was(model: Any) -> Iterator[None]:
    """The model before training: without dropout, and with its adapter switched off where it has one."""
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
    """The names of the stretches that are there: whole, or they would not have such a name."""
    if not folder.is_dir():
        return []
    fs.sweep(folder)
    return sorted(path.name for path in folder.iterdir() if (path / NUMBERS).is_file())


def _folder(run: Run) -> Path:
    """Of this model and these data: another of either has another reference."""
    text = f"{run.attempt.model_dir}\0{run.attempt.data_dir.name}"
    return run.attempt.job_dir / f"reference-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
