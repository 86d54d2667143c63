"""A share that runs out of memory is cut finer, and comes to the gradient of one that was cut so from the start."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from onyx.memory.footprint.training_step import Batch
from onyx.training.packing.samples import Data, batch_of
from onyx.training.rank.run import Run
from onyx.training.rank.share import ShareResult, run_share
from tests.training.job import Job, inline


def run_first(run: Run, budget: int) -> tuple[ShareResult, list[torch.Tensor]]:
    """The share of the first window, and its gradients."""
    for each in run.step.parameters:
        each.grad = None
    window = run.next_window()
    result = run_share(run.step, window.share, budget=budget, weight=window.weight, update=0)
    return result, [each.grad.clone() for each in run.step.parameters if each.grad is not None]


def at_most(samples: int, patch: pytest.MonkeyPatch) -> None:
    """Let a larger micro-batch run out of memory."""

    def limited(data: Data, chosen: NDArray[np.int64], device: torch.device, **options: Any) -> Batch:
        if len(chosen) > samples:
            raise MemoryError
        return batch_of(data, chosen, device, **options)

    patch.setattr("onyx.training.rank.step.batch_of", limited)


def test_a_finer_cut_has_the_bits_of_one_from_the_start(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    with inline(job) as run:
        at_most(2, monkeypatch)
        result, gradients = run_first(run, 1000)
        assert result.retries > 0
        assert result.in_backward == result.oversized == 0
        assert result.widest <= 2
        at_most(1000, monkeypatch)
        again, expected = run_first(run, result.budget)
    assert again.retries == 0
    assert len(again.sums) == len(result.sums) == result.window.count
    assert all(torch.equal(one, other) for one, other in zip(gradients, expected, strict=True))


def test_a_sample_that_does_not_fit_alone_is_reported(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    with inline(job) as run:
        at_most(0, monkeypatch)
        result, gradients = run_first(run, 1000)
        longest = int(run.step.samples.lengths[run.next_window().share].max())
    assert result.oversized == longest
    assert gradients == []


def test_a_share_without_weight_runs_nothing(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    with inline(job) as run:
        at_most(0, monkeypatch)
        share = run.next_window().share
        result = run_share(run.step, share, budget=1000, weight=0.0, update=0)
    assert (result.retries, result.widest, result.sums) == (0, 0, [])
