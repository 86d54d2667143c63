"""A micro-batch in one row."""

import numpy as np
import torch

from onyx.memory.footprint.training_step import IGNORED
from onyx.training.packing.samples import blank_row, row_of

CPU = torch.device("cpu")


def test_tokens_labels_positions_and_runs() -> None:
    first = (np.array([5, 6, 7]), np.array([IGNORED, 6, 7]))
    second = (np.array([8, 9]), np.array([8, 9]))
    batch = row_of([first, second, second], CPU)
    assert batch.input_ids.tolist() == [[5, 6, 7, 8, 9, 8, 9]]
    # Shifted. A sample's last token predicts nothing: the next token belongs to another sample.
    assert batch.labels.tolist() == [[6, 7, IGNORED, 9, IGNORED, 9, IGNORED]]
    assert batch.positions is not None
    assert batch.runs is not None
    assert batch.positions.tolist() == [[0, 1, 2, 0, 1, 0, 1]]
    assert batch.runs.flatten().tolist() == [1, 3, 2, 2]
    assert batch.attention_mask is None


def test_one_token_alone() -> None:
    batch = row_of([(np.array([4]), np.array([4]))], CPU)
    assert (batch.input_ids.tolist(), batch.labels.tolist()) == ([[4]], [[IGNORED]])
    assert batch.runs is not None
    assert batch.runs.shape == (1, 1, 1, 2)


def test_a_blank_row() -> None:
    batch = blank_row(3, 4, CPU)
    assert batch.input_ids.shape == batch.labels.shape == (1, 12)
    assert batch.runs is not None
    assert batch.runs.flatten().tolist() == [3, 4]
