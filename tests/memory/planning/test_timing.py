"""Timings that ranks stored make later plans say how long a job takes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.memory_cases import llama
from onyx.memory.devices.device import Device
from onyx.memory.footprint.json_cache import Cache
from onyx.memory.planner import plan
from onyx.memory.planning.timing import Timing, store_timing, stored_timing, timing_key
from onyx.memory.recipe import Lora, Recipe

CARD = Device(kind="cuda", index=0, name="A100", memory_total=2**34, memory_free=2**34)
TIMING = Timing(per_micro_batch=0.5, per_token=0.001, per_update=0.25)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONYX_HOME", str(tmp_path))


def test_a_later_plan_knows_the_time() -> None:
    recipe = Recipe(model=llama(depth=2), max_length=32)
    first = plan(recipe, effective_batch=8, devices=[CARD], samples=80, epochs=2)
    assert first.seconds_per_update is None
    key = first.devices[0].timing_key
    assert key is not None
    store_timing(key, TIMING)
    later = plan(recipe, effective_batch=8, devices=[CARD], samples=80, epochs=2)
    seconds = 0.25 + 0.5 + 8 * 32 * 0.001
    assert later.seconds_per_update == pytest.approx(seconds)
    assert later.seconds_total == pytest.approx(20 * seconds)
    assert plan(recipe, effective_batch=8, devices=[replace(CARD, name="T4")]).seconds_per_update is None


def test_the_key_is_all_that_a_timing_depends_on() -> None:
    config, recipe = llama(depth=2), Recipe(model=None)
    others = [
        timing_key(llama(depth=3), recipe, CARD),
        timing_key(config, recipe.changed(method="lora"), CARD),
        timing_key(config, recipe.changed(precision="bf16"), CARD),
        timing_key(config, recipe.changed(gradient_checkpointing=True), CARD),
        timing_key(config, recipe, replace(CARD, name="T4")),
        timing_key(config, recipe, replace(CARD, cores=2)),
    ]
    assert len({timing_key(config, recipe, CARD), *others}) == 7
    adapted = recipe.changed(method="lora", lora=Lora(target_modules=("q_proj",)))
    assert timing_key(config, adapted, CARD) == others[1]


def test_what_cannot_be_read_is_no_timing() -> None:
    for text in ("[]", json.dumps({"per_token": 1}), "{"):
        Cache("timings").write({"timing": "key"}, text)
        assert stored_timing("key") is None
    store_timing("key", TIMING)
    assert stored_timing("key") == TIMING
