import copy
import math

import pytest
import torch
from hypothesis import given, settings
from torch import nn

from onyx.accumulation.boundary import close
from onyx.accumulation.window import Window
from tests.accumulation.exact import (
    TOLERANCE,
    difference,
    dtypes,
    flat,
    flat_grad,
    join,
    make_batches,
    make_model,
    mean_loss,
    ragged_sizes,
    sum_loss,
)


@given(sizes=ragged_sizes, dtype=dtypes)
@settings(max_examples=40)
def test_a_known_weight_makes_any_cut_the_big_batch(sizes: list[int], dtype: torch.dtype) -> None:
    batches = make_batches(sizes, dtype)
    model = make_model(dtype)
    big = copy.deepcopy(model)
    mean_loss(big, join(batches)).backward()

    window = Window(length=len(batches), weight=sum(sizes))
    for batch in batches:
        window.take(sum_loss(model, batch), len(batch[1]), reduction="sum").backward()

    assert window.correction() == 1.0
    assert difference(flat_grad(model), flat_grad(big)) <= TOLERANCE[dtype]


@given(sizes=ragged_sizes, dtype=dtypes)
@settings(max_examples=40)
def test_a_weight_known_at_the_end_is_corrected_once(sizes: list[int], dtype: torch.dtype) -> None:
    batches = make_batches(sizes, dtype)
    model = make_model(dtype)
    big = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, big)]
    mean_loss(big, join(batches)).backward()
    optimizers[1].step()

    window = Window(length=16)  # planned longer or shorter than what comes
    for batch in batches:
        window.take(mean_loss(model, batch), weight=len(batch[1])).backward()
    close(window, optimizers[0])

    assert difference(flat(model), flat(big)) <= TOLERANCE[dtype]


def test_one_micro_batch_is_plain_training_to_the_bit() -> None:
    loss = torch.tensor(2.0, requires_grad=True)
    window = Window(length=1)
    assert window.take(loss) is loss
    assert window.full
    assert window.correction() == 1.0


def test_it_counts() -> None:
    window = Window(length=3)
    next_is_last = [window.next_is_last]
    for loss, weight in ((1.0, 2), (3.0, 4)):
        window.take(torch.tensor(loss), weight)
        next_is_last.append(window.next_is_last)
    assert next_is_last == [False, False, True]
    assert (window.count, window.taken, window.losses) == (2, 6.0, 4.0)
    assert not window.full


def test_a_micro_batch_without_label_tokens_contributes_nothing() -> None:
    layer = nn.Linear(2, 3)
    x = torch.randn(2, 2)
    window = Window(length=2)
    nothing = nn.functional.cross_entropy(layer(x), torch.tensor([-100, -100]))
    assert math.isnan(nothing.item())
    window.take(nothing, 0).backward()
    window.take(nn.functional.cross_entropy(layer(x), torch.tensor([0, -100])), 1).backward()
    assert math.isfinite(window.losses)
    assert layer.weight.grad is not None
    expected = torch.autograd.grad(nn.functional.cross_entropy(layer(x)[:1], torch.tensor([0])), layer.weight)[0]
    factor = window.correction()
    assert factor is not None
    torch.testing.assert_close(layer.weight.grad * factor, expected)


def test_a_window_of_weight_zero_has_no_correction() -> None:
    window = Window(length=1)
    window.take(torch.tensor(1.0, requires_grad=True), 0)
    assert window.correction() is None
    assert Window(length=1, weight=0).correction() is None


def test_gradients_of_the_callers_backward_become_a_mean() -> None:
    model, batches = make_model(), make_batches([4, 4, 4])
    big = copy.deepcopy(model)
    mean_loss(big, join(batches)).backward()
    window = Window(length=3)
    for batch in batches:
        loss = mean_loss(model, batch)
        loss.backward()
        window.take_undivided(loss)
    factor = window.correction()
    assert factor is not None
    assert difference(flat_grad(model) * factor, flat_grad(big)) <= 1e-6


def test_divided_and_undivided_do_not_mix() -> None:
    window = Window(length=3)
    window.take(torch.tensor(1.0))
    with pytest.raises(ValueError, match="divided already"):
        window.take_undivided(torch.tensor(1.0))


def test_weights_are_all_or_none() -> None:
    window = Window(length=3)
    window.take(torch.tensor(1.0), 2)
    with pytest.raises(ValueError, match="do not mix"):
        window.take(torch.tensor(1.0))


@pytest.mark.parametrize("weight", [-1, math.nan, math.inf, "4", True, torch.ones(2), torch.tensor(-1.0)])
def test_a_weight_is_a_finite_number(weight: object) -> None:
    with pytest.raises(ValueError, match="weight must be"):
        Window(length=1).take(torch.tensor(1.0), weight)  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [0, -1, 1.5, math.nan, "2", True])
def test_a_length_is_a_whole_number(length: object) -> None:
    with pytest.raises(ValueError, match="length of a window must be >= 1"):
        Window(length=length)  # type: ignore[arg-type]


def test_a_loss_is_one_number() -> None:
    with pytest.raises(ValueError, match="loss must be one number"):
        Window(length=1).take(torch.ones(3))


def test_no_number_is_read_from_a_device_inside_a_window() -> None:
    """The meta device has no values: reading one raises."""
    window = Window(length=4)
    for _ in range(3):
        contribution = window.take(torch.ones((), device="meta", requires_grad=True), torch.ones((), device="meta"))
        assert contribution.device.type == "meta"
    assert isinstance(window.losses, torch.Tensor)
    assert isinstance(window.taken, torch.Tensor)
