"""What is stored per machine is computed once, and again when it cannot be read."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.memory_cases import gpt2, llama
from onyx.memory.devices.device import Device
from onyx.memory.footprint import estimate
from onyx.memory.footprint.json_cache import Cache
from onyx.memory.footprint.overhead import ASSUMED_CUDA
from onyx.memory.footprint.stored import footprint_key, footprint_of, overhead_of
from onyx.memory.recipe import Lora, Recipe

RECIPE = Recipe(model=None, max_length=64)


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONYX_HOME", str(tmp_path))


def test_the_second_time_nothing_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    first = footprint_of(llama(depth=2), RECIPE, "cpu")
    monkeypatch.setattr(estimate, "estimate", None)
    assert footprint_of(llama(depth=2), RECIPE.changed(max_length=100), "cpu") == first


def test_a_corrupted_entry_is_computed_again() -> None:
    config = llama(depth=2)
    first = footprint_of(config, RECIPE, "cpu")
    key = footprint_key(config, RECIPE, "cpu")
    Cache("footprints").write(key, "nonsense")
    assert footprint_of(config, RECIPE, "cpu") == first
    Cache("footprints").path(key).write_text("{")
    assert footprint_of(config, RECIPE, "cpu") == first


@pytest.mark.parametrize(
    "options",
    [
        {"method": "lora"},
        {"method": "lora", "lora": Lora(r=9)},
        {"precision": "bf16"},
        {"gradient_checkpointing": True},
        {"task": "classification"},
    ],
)
def test_all_that_changes_a_footprint_is_in_the_key(options: dict[str, Any]) -> None:
    keys = [footprint_key(gpt2(), recipe, "cpu") for recipe in (RECIPE, RECIPE.changed(method="lora"))]
    changed = footprint_key(gpt2(), RECIPE.changed(**options), "cpu")
    assert changed != keys[0]
    assert options == {"method": "lora"} or changed != keys[1]
    assert footprint_key(gpt2(vocabulary=2001), RECIPE, "cpu") != keys[0]
    assert footprint_key(gpt2(), RECIPE, "cuda") != keys[0]


def test_the_overhead_of_a_card_that_is_not_here_is_assumed_until_measured() -> None:
    card = Device.imagined({"name": "A100", "memory_gb": 40}, 0)
    assert overhead_of(card) == ASSUMED_CUDA
    assert not ASSUMED_CUDA.measured
