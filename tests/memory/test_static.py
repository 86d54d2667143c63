"""Counted on meta, compared with what is really there."""

from typing import Any

import pytest
import torch

from benchmarks.memory_cases import FAMILIES
from onyx.memory.model import build
from onyx.memory.recipe import Lora, Recipe
from onyx.memory.static import count
from onyx.recipe.optimizer import make_optimizer


@pytest.mark.parametrize("options", [{}, {"method": "lora", "lora": Lora(r=4)}])
@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_exact(family: str, options: dict[str, Any]) -> None:
    config = FAMILIES[family](depth=2)
    recipe = Recipe(model=config, **options)
    static = count(build(config, recipe))
    model = build(config, recipe, "cpu")
    optimizer = make_optimizer(model.parameters())
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in model.parameters()}
    assert static.weights == sum(storages.values())
    assert static.buffers == sum(each.nbytes for each in model.buffers())
    assert static.gradients == sum(each.nbytes for each in model.parameters() if each.requires_grad)
    states = [value for state in optimizer.state.values() for value in state.values()]
    assert static.optimizer == sum(each.nbytes for each in states)
    assert static.base == static.weights + static.buffers + static.optimizer


def test_frozen_half_weights_take_half() -> None:
    config = FAMILIES["Llama"]()
    full = count(build(config, Recipe(model=config, method="lora")))
    half = count(build(config, Recipe(model=config, method="lora", precision="bf16")))
    assert half.gradients == full.gradients
    assert full.weights - full.gradients == 2 * (half.weights - half.gradients)
    assert torch.float32.itemsize == 4
