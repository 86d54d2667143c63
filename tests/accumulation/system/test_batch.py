from typing import Any

import pytest
import torch
from torch import nn

from onyx.accumulation.system.batch import checked_batch, evaluating, joined_shape, micro_batches_of
from tests.accumulation.exact import make_model
from tests.accumulation.system.common import CPU, slope, trainer_of


@pytest.mark.parametrize("bad", [None, [1.0], 3, torch.ones(()), torch.ones(0, 5)])
def test_data_and_target_are_batches_of_samples(bad: Any) -> None:
    good = torch.ones(2, 5)
    with pytest.raises(ValueError, match="data must be a tensor"):
        checked_batch(bad, good, CPU)
    with pytest.raises(ValueError, match="target must be a tensor"):
        checked_batch(good, bad, CPU)


def test_data_and_target_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="as many samples, got 2 and 3"):
        checked_batch(torch.ones(2, 5), torch.ones(3), CPU)


def test_shapes_of_parts_add_up() -> None:
    assert joined_shape([torch.Size([3, 7]), torch.Size([2, 7])]) == torch.Size([5, 7])
    assert joined_shape([torch.Size([3, 7])]) == torch.Size([3, 7])
    assert joined_shape([torch.Size([]), torch.Size([])]) == torch.Size([])
    assert joined_shape([None, None]) is None


def test_a_loader_is_cut_into_micro_batches() -> None:
    data = torch.utils.data.TensorDataset(torch.ones(10, 2))
    assert micro_batches_of(torch.utils.data.DataLoader(data, batch_size=5), micro_batch=2) == 6
    assert micro_batches_of([1, 2, 3], micro_batch=2) == 3
    assert micro_batches_of(iter([1, 2, 3]), micro_batch=2) is None


def test_evaluation_restores_the_mode_of_every_module() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout(), nn.Linear(1, 1)))
    model[1].eval()

    def fail() -> None:
        with evaluating(model):
            assert not any(module.training for module in model.modules())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [module.training for module in model.modules()] == [True, True, False, False, False]


def test_an_empty_loader_is_refused() -> None:
    trainer = trainer_of(make_model())
    for epoch in (trainer.train_epoch, trainer.validate_epoch):
        with pytest.raises(ValueError, match="gave no batch"):
            epoch([])


@pytest.mark.parametrize("loss", [1.0, None, "1", torch.ones(2, requires_grad=True)])
def test_a_loss_that_is_not_one_number_is_refused(loss: Any) -> None:
    _, accumulator = slope()
    with pytest.raises(ValueError, match="loss must be a tensor of one number"):
        accumulator.accumulate_gradients(loss)
    assert accumulator.state.total_steps == 0


def test_a_loss_without_a_graph_is_refused() -> None:
    _, accumulator = slope()
    with pytest.raises(ValueError, match="no graph"):
        accumulator.accumulate_gradients(torch.ones(()))


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf"), "2", True, torch.ones(2)])
def test_a_weight_that_is_no_finite_number_from_zero_is_refused(weight: Any) -> None:
    model, accumulator = slope()
    with pytest.raises(ValueError, match="weight must be"):
        accumulator.accumulate_gradients(model(1.0), weight=weight)
    assert accumulator.state.total_steps == 0


def test_a_weight_needs_backward_by_the_accumulator() -> None:
    model, accumulator = slope()
    with pytest.raises(ValueError, match="weight needs backward=True"):
        accumulator.accumulate_gradients(model(1.0), backward=False, weight=2)


def test_other_arguments_are_checked() -> None:
    model, accumulator = slope()
    with pytest.raises(ValueError, match="backward must be True or False"):
        accumulator.accumulate_gradients(model(1.0), backward=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="reduction must be one of mean, sum"):
        accumulator.accumulate_gradients(model(1.0), reduction="none")  # type: ignore[arg-type]
