"""The reference of preference training: what the model thought of each answer before it was trained.

Its log-probabilities are computed before the first update, in eval mode and with adapters switched off, and kept with
the job: no second copy of the model is ever needed, later epochs pay nothing, and an attempt that resumes reads the
numbers that the first one computed. Pairs are done in stretches, so that a kill costs one stretch.
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

from onyx.accumulation.exchange import Ballot
from onyx.memory.cpu import is_out_of_memory
from onyx.memory.preference import log_probabilities
from onyx.memory.step import autocast
from onyx.training import durable
from onyx.training.cut import samples_within
from onyx.training.data.pairs import Pairs
from onyx.training.errors import UserError
from onyx.training.oom import does_not_fit, finer, free
from onyx.training.order import Indices
from onyx.training.run import Run
from onyx.training.samples import batch_of
from onyx.training.worker import Worker

STRETCH = 512
"""Pairs that are done, agreed on and stored together."""

NUMBERS = "log_probabilities.npy"


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Some pairs of one part of the data."""

    name: str
    pairs: Pairs
    chosen: Indices


def make_reference(run: Run) -> bool:
    """Fill in the reference of all pairs: what is stored, and what is not yet. False when told to stop."""
    if not isinstance(run.worker.samples, Pairs):
        return True
    folder = run.attempt.job_dir / f"reference-{_key(run)}"
    stored = set(json.loads(run.ranks.from_first(json.dumps(_stored(folder)) if run.ranks.first else "")))
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
    with _as_it_was(run.worker.model):
        return all(_compute(run, stretch, folder) for stretch in left)


def _compute(run: Run, stretch: Stretch, folder: Path) -> bool:
    """Every rank does its share, all learn the whole, and rank 0 stores it. False when a rank was told to stop."""
    pairs, chosen = stretch.pairs, stretch.chosen
    mine = np.zeros((len(chosen), 2), dtype=np.float32)
    share = run.share_of(chosen, pairs)
    stuck = _fill(run.worker, pairs, share, run.budget)
    mine[np.searchsorted(chosen, share)] = pairs.reference[share]
    told = (float(stuck), *mine.ravel().tolist())
    result = run.ranks.vote(Ballot(failed=stuck > 0, stop=run.worker.stop.requested, told=told))
    said = np.array(result.told).reshape(run.ranks.size, -1)
    if result.failed:
        rank = int(said[:, 0].argmax())
        raise does_not_fit(int(said[rank, 0]), run.attempt.shares[rank], run.attempt.spec.training)
    if result.stop:
        return False
    # Each pair was done by one rank; all others told 0.
    pairs.reference[chosen] = said[:, 1:].sum(axis=0).reshape(-1, 2)
    if run.ranks.first:
        run.record.refuse_if_superseded()
        with durable.directory(folder / stretch.name) as part:
            np.save(part / NUMBERS, pairs.reference[chosen])
        run.record.events.say("message", f"reference log-probabilities of {stretch.name} are computed")
    return True


def _fill(worker: Worker, pairs: Pairs, share: Indices, budget: int) -> int:
    """The reference of a share, cut finer where memory runs out. Tokens of a pair that does not fit alone, or 0."""
    done = 0
    while done < len(share) and not worker.stop.requested:
        length = int(pairs.lengths[share[done]])
        chosen = share[done : done + samples_within(budget, length)]
        found = _try(worker, pairs, chosen)
        if found is not None:
            pairs.reference[chosen] = found.reshape(-1, 2).numpy()
            done += len(chosen)
            continue
        free(worker.parameters)
        smaller = finer(budget, samples=len(chosen), length=length)
        if smaller is None:
            return length
        budget = smaller
    return 0


def _try(worker: Worker, pairs: Pairs, chosen: Indices) -> torch.Tensor | None:
    """None when memory ran out."""
    try:
        batch = batch_of(pairs, chosen, worker.device)
        with autocast(worker.precision, worker.device.type):
            return log_probabilities(worker.model, batch).float().cpu()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    return None


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
    for part, pairs in (("training", run.worker.samples), ("evaluation", run.evaluation)):
        if isinstance(pairs, Pairs):
            for start in range(0, len(pairs), STRETCH):
                chosen = np.arange(start, min(start + STRETCH, len(pairs)))
                yield Stretch(name=f"{part}-{start:08}", pairs=pairs, chosen=chosen)


def _stored(folder: Path) -> list[str]:
    """The names of the stretches that are there: whole, or they would not have such a name."""
    if not folder.is_dir():
        return []
    durable.sweep(folder)
    return sorted(path.name for path in folder.iterdir() if (path / NUMBERS).is_file())


def _key(run: Run) -> str:
    """Of the model and the data: another of either has another reference."""
    text = f"{run.attempt.model_dir}\0{run.attempt.data_dir.name}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]
