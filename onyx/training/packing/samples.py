"""From prepared samples to the tensors of a micro-batch: padded rows, or samples joined in one row."""

from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from onyx.memory.footprint.training_step import IGNORED, Batch
from onyx.training.data.token_store import PreferencePairs
from onyx.training.packing.cut import Lengths
from onyx.training.packing.order import Indices

Sample = tuple[NDArray[np.integer], NDArray[np.integer]]
"""Tokens and labels, side by side."""


def row_of(samples: list[Sample], device: torch.device) -> Batch:
    """Join samples in one row. Labels are shifted to where they are predicted, never into the next sample."""
    lengths = np.array([len(tokens) for tokens, _ in samples])
    labels = np.full(int(lengths.sum()), IGNORED, dtype=np.int64)
    for end, (_, its_labels) in zip(np.cumsum(lengths).tolist(), samples, strict=True):
        labels[end - len(its_labels) : end - 1] = its_labels[1:]
    tokens = np.concatenate([its_tokens for its_tokens, _ in samples]).astype(np.int64)
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    return Batch(
        input_ids=torch.from_numpy(tokens)[None].to(device),
        labels=torch.from_numpy(labels)[None].to(device),
        attention_mask=None,
        positions=torch.from_numpy(np.arange(len(starts)) - starts)[None].to(device),
        runs=torch.from_numpy(_runs(lengths))[None, None, None],  # the CPU reads it
    )


def blank_row(samples: int, length: int, device: torch.device) -> Batch:
    """That many samples of token 0, made like real ones, so that a compiled step uses the same graph."""
    zeros = np.zeros(length, dtype=np.int64)
    return row_of([(zeros, zeros)] * samples, device)


def _runs(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number and length of adjacent samples of equal length, run after run."""
    firsts = np.flatnonzero(np.diff(lengths, prepend=0))
    counts = np.diff(firsts, append=len(lengths))
    return np.stack([counts, lengths[firsts]], axis=1).ravel()


PADDING = 0
"""Any token would do: it is to the right of all others, where a causal model never attends; its label is ignored."""


class Samples(Protocol):
    """Tokenised samples with random access."""

    @property
    def lengths(self) -> Lengths:
        """Tokens of each sample."""
        ...

    @property
    def tokens(self) -> NDArray[np.integer]:
        """Tokens of each sample, as metrics count them."""
        ...

    @property
    def weights(self) -> NDArray[np.integer]:
        """Label tokens of each sample that count: after the causal shift, without masked ones."""
        ...

    def sample(self, index: int) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
        """Tokens and labels of one sample, side by side: `IGNORED` where a token does not count."""
        ...


Data = Samples | PreferencePairs


def batch_of(samples: Data, chosen: Indices, device: torch.device, *, joined: bool = False) -> Batch:
    """One micro-batch, padded on the right or joined in a row, its labels shifted to where they are predicted."""
    if not isinstance(samples, PreferencePairs):
        return _checked(samples, chosen, _row(samples, chosen, device) if joined else _rows(samples, chosen, device))
    halves = np.stack([2 * chosen, 2 * chosen + 1], axis=1).ravel()
    batch = _checked(samples.answers, halves, _rows(samples.answers, halves, device))
    return replace(batch, reference=torch.from_numpy(samples.reference[chosen].ravel()).to(device))


def _rows(samples: Samples, chosen: Indices, device: torch.device) -> Batch:
    width = int(samples.lengths[chosen].max())
    tokens = np.full((len(chosen), width), PADDING, dtype=np.int64)
    labels = np.full((len(chosen), width), IGNORED, dtype=np.int64)
    for row, index in enumerate(chosen.tolist()):
        its_tokens, its_labels = samples.sample(index)
        tokens[row, : len(its_tokens)] = its_tokens
        labels[row, : len(its_labels) - 1] = its_labels[1:]
    return Batch(
        input_ids=torch.from_numpy(tokens).to(device), labels=torch.from_numpy(labels).to(device), attention_mask=None
    )


def _row(samples: Samples, chosen: Indices, device: torch.device) -> Batch:
    return row_of([samples.sample(index) for index in chosen.tolist()], device)


def _checked(samples: Samples, chosen: Indices, batch: Batch) -> Batch:
    """Compare with the prepared counts. The window's weight is their sum, so a wrong count makes a wrong update."""
    counted, expected = int((batch.labels != IGNORED).sum()), int(samples.weights[chosen].sum())
    if counted != expected:
        raise RuntimeError(f"samples {chosen.tolist()} have {counted} label tokens where {expected} were prepared")
    return batch
