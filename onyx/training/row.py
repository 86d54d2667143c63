"""A micro-batch in one row: samples end to end, without padding between them."""

import numpy as np
import torch
from numpy.typing import NDArray

from onyx.memory.step import IGNORED, Batch

Sample = tuple[NDArray[np.integer], NDArray[np.integer]]
"""Tokens and labels, side by side."""


def row_of(samples: list[Sample], device: torch.device) -> Batch:
    """Samples in the order given; labels are shifted to where they are predicted, none into the next sample."""
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
        runs=torch.from_numpy(_runs(lengths))[None, None, None],  # read by the CPU, wherever the tokens are
    )


def blank_row(samples: int, length: int, device: torch.device) -> Batch:
    """That many samples of token 0, made as others are: a compiled step sees no difference."""
    nothing = np.zeros(length, dtype=np.int64)
    return row_of([(nothing, nothing)] * samples, device)


def _runs(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number and length of samples that stand side by side and are equally long, run after run."""
    firsts = np.flatnonzero(np.diff(lengths, prepend=0))
    counts = np.diff(firsts, append=len(lengths))
    return np.stack([counts, lengths[firsts]], axis=1).ravel()
