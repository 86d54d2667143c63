from typing import Any

import pytest

from onyx.memory.errors import PlanError
from onyx.memory.recipe import Lora, Recipe


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"method": "qlora"}, "method must be one of full, lora"),
        ({"precision": "int8"}, "precision must be one of float32, bf16, fp16"),
        ({"task": "translation"}, "task must be one of"),
        ({"max_length": 0}, "max_length must be a whole number of at least 1"),
        ({"max_length": True}, "max_length must be a whole number of at least 1"),
        ({"max_length": 12.5}, "max_length must be a whole number of at least 1"),
    ],
)
def test_a_wrong_field_says_what_is_allowed(options: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        Recipe(model="gpt2", **options)


@pytest.mark.parametrize("options", [{"r": 0}, {"r": 2.5}, {"dropout": 1.0}, {"dropout": -0.1}, {"target_modules": ()}])
def test_a_wrong_adapter_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="lora"):
        Lora(**options)


def test_a_changed_recipe_is_checked_too() -> None:
    recipe = Recipe(model="gpt2")
    assert recipe.changed(method="lora").method_label == "LoRA r=8"
    with pytest.raises(PlanError):
        recipe.changed(max_length=-1)
