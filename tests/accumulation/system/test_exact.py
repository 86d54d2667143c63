"""However a window is cut, the update equals that of its samples as one batch."""

import copy
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD

from onyx.accumulation.lazy_scalar import read
from onyx.accumulation.system import GradientAccumulationTrainer, GradientAccumulator
from tests.accumulation.exact import (
    TOLERANCE,
    big_batch_weights,
    difference,
    dtypes,
    flat,
    join,
    make_batches,
    make_model,
    mean_loss,
    ragged_sizes,
    sum_loss,
    window_lengths,
    windows,
)
from tests.accumulation.system.common import Dial, accumulator_of, config_of, trainer_of


@given(sizes=ragged_sizes, length=window_lengths, dtype=dtypes, summed=st.booleans())
@settings(max_examples=40)
def test_weighted_micro_batches(sizes: list[int], length: int, dtype: torch.dtype, summed: bool) -> None:
    model, batches = make_model(dtype), make_batches(sizes, dtype)
    expected = big_batch_weights(model, batches, length)
    accumulator = accumulator_of(model, accumulation_steps=length)
    for batch in batches:
        loss = (sum_loss if summed else mean_loss)(model, batch)
        accumulator.accumulate_gradients(loss, weight=len(batch[0]), reduction="sum" if summed else "mean")
    accumulator.flush()
    assert difference(flat(model), expected) < TOLERANCE[dtype]


@given(count=st.integers(1, 20), length=window_lengths, dtype=dtypes, by_caller=st.booleans())
@settings(max_examples=40)
def test_equal_micro_batches_need_no_weights(count: int, length: int, dtype: torch.dtype, by_caller: bool) -> None:
    model, batches = make_model(dtype), make_batches([3] * count, dtype)
    expected = big_batch_weights(model, batches, length)
    accumulator = accumulator_of(model, accumulation_steps=length)
    for batch in batches:
        loss = mean_loss(model, batch)
        if by_caller:
            loss.backward()
        accumulator.accumulate_gradients(loss, backward=not by_caller)
    accumulator.flush()
    assert difference(flat(model), expected) < TOLERANCE[dtype]


@given(sizes=ragged_sizes, length=window_lengths, dtype=dtypes, reduction=st.sampled_from(["mean", "sum"]))
@settings(max_examples=40)
def test_a_trainer_weights_by_samples(sizes: list[int], length: int, dtype: torch.dtype, reduction: str) -> None:
    model, batches = make_model(dtype), make_batches(sizes, dtype)
    expected = big_batch_weights(model, batches, length)
    trainer = GradientAccumulationTrainer(config_of(accumulation_steps=length), gauge=Dial(0.5))
    trainer.setup_training(model, SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(reduction=reduction))
    result = trainer.train_epoch(batches)
    assert difference(flat(model), expected) < TOLERANCE[dtype]
    assert result["optimization_steps"] == len(windows(batches, length))


@given(
    count=st.integers(1, 8),
    size=st.integers(1, 12),
    micro=st.integers(1, 12),
    length=st.integers(1, 4),
    summed=st.booleans(),
)
@settings(max_examples=40)
def test_cutting_batches_changes_nothing(count: int, size: int, micro: int, length: int, summed: bool) -> None:
    """A chooser that shrinks 12 to any micro-batch: the windows keep their samples."""
    dtype = torch.float64
    batches = make_batches([size] * count, dtype)
    whole, cut = make_model(dtype), make_model(dtype)
    steps: dict[str, Any] = {"accumulation_steps": length, "effective_batch_size": 12, "loss_scaling": not summed}
    trainer_of(whole, **steps).train_epoch(batches)
    trainer = GradientAccumulationTrainer(
        config_of(strategy="memory_aware", **steps), gauge=Dial(0.5), choose_micro_batch=lambda **_: micro
    )
    trainer.setup_training(cut, SGD(cut.parameters(), lr=0.1), nn.CrossEntropyLoss())
    result = trainer.train_epoch(batches)
    assert difference(flat(cut), flat(whole)) < TOLERANCE[dtype]
    assert result["optimization_steps"] == len(windows(batches, length))


def test_larger_loader_batches_are_cut_to_the_micro_batch() -> None:
    """Two batches of 8 are a window of four micro-batches of 4."""
    dtype = torch.float64
    model, batches = make_model(dtype), make_batches([8] * 4, dtype)
    expected = big_batch_weights(model, batches, 2)
    trainer = trainer_of(model, accumulation_steps=4, effective_batch_size=4)
    result = trainer.train_epoch(batches)
    assert result["optimization_steps"] == 2
    assert trainer.accumulator.state.total_steps == 8
    assert difference(flat(model), expected) < TOLERANCE[dtype]


def test_one_micro_batch_is_plain_training_to_the_bit() -> None:
    model, batches = make_model(), make_batches([5, 3, 7])
    plain = copy.deepcopy(model)
    optimizer = SGD(plain.parameters(), lr=0.1)
    for batch in batches:
        optimizer.zero_grad()
        mean_loss(plain, batch).backward()
        optimizer.step()
    trainer_of(model, accumulation_steps=1).train_epoch(batches)
    assert torch.equal(flat(model), flat(plain))


def test_the_losses_reported_are_means_over_samples() -> None:
    model, batches = make_model(torch.float64), make_batches([5, 2, 7], torch.float64)
    expected = float(mean_loss(model, join(batches)).detach())
    trainer = trainer_of(model, SGD(model.parameters(), lr=0.0), effective_batch_size=3)
    assert abs(trainer.train_epoch(batches)["epoch_loss"] - expected) < 1e-12
    assert abs(trainer.validate_epoch(batches)["val_loss"] - expected) < 1e-12
    step = trainer.train_step(*batches[2])
    assert abs(read(step["loss"]) - float(mean_loss(model, batches[2]).detach())) < 1e-12


def test_a_sum_loss_is_reported_per_sample_too() -> None:
    model, batches = make_model(torch.float64), make_batches([5, 2], torch.float64)
    expected = float(mean_loss(model, join(batches)).detach())
    trainer = GradientAccumulationTrainer(config_of(effective_batch_size=3), gauge=Dial(0.5))
    trainer.setup_training(model, SGD(model.parameters(), lr=0.0), nn.CrossEntropyLoss(reduction="sum"))
    assert abs(trainer.train_epoch(batches)["epoch_loss"] - expected) < 1e-12
    assert abs(trainer.validate_epoch(batches)["val_loss"] - expected) < 1e-12


def test_a_clipped_window_is_the_clipped_big_batch() -> None:
    model, batches = make_model(torch.float64), make_batches([4] * 4, torch.float64)
    big = copy.deepcopy(model)
    optimizer = SGD(big.parameters(), lr=0.1)
    mean_loss(big, join(batches)).backward()
    nn.utils.clip_grad_norm_(big.parameters(), 0.01)
    optimizer.step()
    accumulator: GradientAccumulator = accumulator_of(model, gradient_clipping=True, clipping_norm=0.01)
    for batch in batches:
        accumulator.accumulate_gradients(mean_loss(model, batch))
    assert difference(flat(model), flat(big)) < 1e-12
