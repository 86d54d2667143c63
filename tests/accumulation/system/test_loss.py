from typing import Any

import pytest
import torch

from tests.accumulation.system.common import slope


@pytest.mark.parametrize("loss", [1.0, None, "1", torch.ones(2, requires_grad=True)])
def test_a_loss_is_one_number(loss: Any) -> None:
    _, accumulator = slope()
    with pytest.raises(ValueError, match="loss must be a tensor of one number"):
        accumulator.accumulate_gradients(loss)
    assert accumulator.state.total_steps == 0


def test_a_loss_has_a_graph() -> None:
    _, accumulator = slope()
    with pytest.raises(ValueError, match="no graph"):
        accumulator.accumulate_gradients(torch.ones(()))


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf"), "2", True, torch.ones(2)])
def test_a_weight_is_a_number_from_zero(weight: Any) -> None:
    model, accumulator = slope()
    with pytest.raises(ValueError, match="weight must be"):
        accumulator.accumulate_gradients(model(1.0), weight=weight)
    assert accumulator.state.total_steps == 0


def test_a_gradient_that_is_there_cannot_be_weighted() -> None:
    model, accumulator = slope()
    with pytest.raises(ValueError, match="weight needs backward=True"):
        accumulator.accumulate_gradients(model(1.0), backward=False, weight=2)


def test_other_arguments_are_checked() -> None:
    model, accumulator = slope()
    with pytest.raises(ValueError, match="backward must be True or False"):
        accumulator.accumulate_gradients(model(1.0), backward=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="reduction must be one of mean, sum"):
        accumulator.accumulate_gradients(model(1.0), reduction="none")  # type: ignore[arg-type]
