import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.memory_cases import llama
from onyx.memory.devices.device import Device
from onyx.memory.errors import DoesNotFitError, PlanError
from onyx.memory.footprint import estimate
from onyx.memory.footprint.overhead import ASSUMED_CUDA
from onyx.memory.planner import plan
from onyx.memory.planning.plan import Plan
from onyx.memory.planning.timing import Timing
from onyx.memory.recipe import Recipe

MIB = 2**20
GB = 2**30
RECIPE = Recipe(model=llama(depth=3), max_length=128)


def card(size: int, index: int = 0, **fields: Any) -> Device:
    return Device(kind="cuda", index=index, name="card", memory_total=size, memory_free=size, **fields)


def test_a_window_that_fits_is_one_micro_batch() -> None:
    made = plan(RECIPE, effective_batch=32, devices=[card(24 * GB)])
    assert (made.window, made.accumulation_steps, made.micro_batch) == (32, 1, 32)
    assert made.devices[0].share == 32
    assert made.devices[0].low < made.devices[0].expected_peak < made.devices[0].high
    assert made.devices[0].expected_peak <= made.devices[0].usable
    assert "published" in made.warnings[0]


def test_what_does_not_fit_at_once_is_accumulated() -> None:
    made = plan(RECIPE, effective_batch=5000, devices=[card(2 * GB)])
    only = made.devices[0]
    assert made.window == only.share == 5000
    assert made.accumulation_steps == only.steps == -(-5000 // only.micro_batch) > 1
    assert only.expected_peak <= only.usable == int(2 * GB * 0.9 * 0.9)
    assert only.token_budget // 128 == only.micro_batch


def test_one_more_sample_would_not_fit() -> None:
    recipe = RECIPE.changed(max_length=500)
    only = plan(recipe, effective_batch=5000, devices=[card(2 * GB)]).devices[0]
    more = plan(recipe, effective_batch=only.micro_batch + 1, devices=[card(64 * GB)]).devices[0]
    assert more.micro_batch == only.micro_batch + 1
    assert ASSUMED_CUDA.cautious(only.low) <= only.usable < ASSUMED_CUDA.cautious(more.low)


def test_free_memory_and_both_fractions_bound_a_plan() -> None:
    device = Device(kind="cuda", index=0, name="card", memory_total=8 * GB, memory_free=2 * GB)
    made = plan(RECIPE, effective_batch=8, devices=[device], max_memory_usage=0.5, memory_safety_margin=0.25)
    assert made.devices[0].usable == int(2 * GB * 0.75)


def test_shares_follow_memory_unless_speed_is_known() -> None:
    cards = [{"name": "A100", "memory_gb": 40}, {"name": "A100", "memory_gb": 80}]
    made = plan(RECIPE, effective_batch=30, devices=cards)
    assert [each.share for each in made.devices] == [10, 20]
    assert [each.label for each in made.devices] == ["cuda:0", "cuda:1"]
    made = plan(RECIPE, effective_batch=30, devices=[card(40 * GB, 0, speed=4.0), card(80 * GB, 1, speed=1.0)])
    assert [each.share for each in made.devices] == [24, 6]


def test_a_device_that_is_too_small_takes_no_part() -> None:
    made = plan(RECIPE, effective_batch=8, devices=[card(GB // 2, 0), card(24 * GB, 1)])
    assert [(each.label, each.share) for each in made.devices] == [("cuda:1", 8)]
    assert "cuda:0 is too small" in made.warnings[0]


def test_a_window_smaller_than_the_number_of_devices() -> None:
    made = plan(RECIPE, effective_batch=1, devices=[card(24 * GB, 0), card(24 * GB, 1)])
    assert [each.share for each in made.devices] == [1]
    assert any("leaves no sample for cuda:1" in each for each in made.warnings)


@pytest.mark.parametrize(("target", "count", "steps"), [(32, 1, 4), (10, 3, 2), (33, 2, 4), (5, 1, 8)])
def test_the_users_accumulation_steps(target: int, count: int, steps: int) -> None:
    cards = [card(24 * GB, i) for i in range(count)]
    made = plan(RECIPE, effective_batch=target, devices=cards, accumulation_steps=steps)
    assert made.accumulation_steps == steps
    assert made.micro_batch == -(-target // (steps * count))
    assert sum(each.share for each in made.devices) == target


def test_accumulation_steps_that_ask_for_too_much() -> None:
    made = plan(RECIPE, effective_batch=5000, devices=[card(2 * GB)], accumulation_steps=2)
    assert made.accumulation_steps == 2
    assert made.devices[0].steps > 2
    assert "asks for a micro-batch of 2500" in made.warnings[0]


def test_lengths_of_the_data() -> None:
    short = plan(RECIPE, effective_batch=5000, devices=[card(2 * GB)], lengths=[20, 30, 64])
    assert (short.max_length, short.window) == (64, 3)
    long = plan(RECIPE, effective_batch=5000, devices=[card(2 * GB)], lengths=[500] * 6000)
    assert long.max_length == 128
    assert any("fewer than the target" in each for each in short.warnings)


def test_seconds_when_they_were_measured() -> None:
    timing = Timing(per_micro_batch=0.5, per_token=0.001, per_update=0.25)
    made = plan(
        RECIPE, effective_batch=10, devices=[card(24 * GB)], lengths=[100] * 40, epochs=3, timings={"cuda:0": timing}
    )
    assert made.seconds_per_update == pytest.approx(0.25 + 0.5 + 1.0)
    assert made.seconds_total == pytest.approx(1.75 * 4 * 3)
    assert plan(RECIPE, effective_batch=10, devices=[card(24 * GB)]).seconds_per_update is None


def test_json_goes_there_and_back() -> None:
    made = plan(RECIPE, effective_batch=32, devices=[card(24 * GB), card(12 * GB, 1)])
    assert Plan.from_json(made.to_json()) == made
    assert made.versions.keys() == {"torch", "transformers", "peft"}
    for text in ("", "{}", "[]", made.to_json().replace('"format": 1', '"format": 99'), '{"format": 1}'):
        with pytest.raises(ValueError, match=r"not a stored plan|another format|Expecting"):
            Plan.from_json(text)


def just_enough_for(recipe: Recipe) -> Device:
    """A card on which one sample of the recipe fits, and hardly more."""
    with pytest.raises(DoesNotFitError) as caught:
        plan(recipe, effective_batch=1, devices=[card(10 * MIB)])
    return card(int(caught.value.needs / 0.81 * 1.001))


def test_what_does_not_fit_is_explained_with_what_would() -> None:
    recipe = RECIPE
    device = just_enough_for(recipe.changed(method="lora"))
    with pytest.raises(DoesNotFitError) as caught:
        plan(recipe, effective_batch=4, devices=[device])
    error = caught.value
    have = error.shortages["cuda:0"]
    assert str(error).startswith(
        f"needs {error.needs / MIB:.0f} MB at micro-batch 1 × 128 tokens; cuda:0 has {have / MIB:.0f} MB. "
    )
    changes = {each.change: each.needs for each in error.alternatives}
    assert "LoRA r=8" in changes
    for change, size in changes.items():
        assert f"{change} ({size / MIB:.0f} MB)" in str(error)
        assert size <= have < error.needs


def test_what_is_offered_fits_indeed() -> None:
    recipe = RECIPE.changed(method="lora", max_length=512)
    device = just_enough_for(recipe.changed(max_length=256))
    with pytest.raises(DoesNotFitError) as caught:
        plan(recipe, effective_batch=1, devices=[device])
    changes = {each.change: each.needs for each in caught.value.alternatives}
    assert "max_length 256" in changes
    assert "max_length 512" not in changes
    for change, changed in (
        ("max_length 256", recipe.changed(max_length=256)),
        ("gradient checkpointing", recipe.changed(gradient_checkpointing=True)),
    ):
        if change in changes:
            made = plan(changed, effective_batch=1, devices=[device])
            assert made.devices[0].expected_peak <= changes[change] <= made.devices[0].usable


def test_nothing_helps() -> None:
    with pytest.raises(DoesNotFitError, match="take a larger device") as caught:
        plan(RECIPE, effective_batch=1, devices=[card(10 * MIB)])
    assert caught.value.alternatives == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"effective_batch": 0}, "effective_batch must be a whole number of at least 1"),
        ({"effective_batch": 2.5}, "effective_batch must be a whole number"),
        ({"accumulation_steps": 0}, "accumulation_steps must be a whole number of at least 1"),
        ({"max_memory_usage": 1.0}, "max_memory_usage must be above 0 and below 1, not 1.0"),
        ({"max_memory_usage": float("nan")}, "max_memory_usage must be above 0 and below 1"),
        ({"memory_safety_margin": 0}, "memory_safety_margin must be above 0 and below 1, not 0"),
        ({"memory_safety_margin": "0.1"}, "memory_safety_margin must be above 0 and below 1"),
        ({"devices": []}, "devices must name at least one device"),
        ({"devices": [{"name": "A100"}]}, "a card needs memory_gb"),
        ({"lengths": [3, 0]}, "lengths must be whole numbers of at least 1"),
        ({"samples": 0}, "samples must be a whole number"),
    ],
)
def test_bad_input(options: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        plan(RECIPE, **{"effective_batch": 8, "devices": [card(24 * GB)], **options})


def test_longer_than_the_models_positions() -> None:
    with pytest.raises(PlanError, match="max_length 513 is beyond the model's 512 positions"):
        plan(RECIPE.changed(max_length=513), effective_batch=8, devices=[card(24 * GB)])


def test_a_plan_from_cache_runs_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even an empty one. What that saves is measured in benchmarks/memory.py."""

    def make() -> Plan:
        return plan(RECIPE, effective_batch=64, devices=[card(8 * GB), card(16 * GB, 1)], lengths=range(1, 4000))

    first = make()
    monkeypatch.setattr(estimate, "estimate", None)
    monkeypatch.setattr("torch.nn.Module.__call__", None)
    assert make() == first


@pytest.mark.parametrize(
    ("config", "options", "needs"),
    [
        ("GPT2Config()", "", 124e6 * 12),
        pytest.param("LlamaConfig()", 'precision="bf16", method="lora"', 13e9, marks=pytest.mark.slow),
    ],
)
def test_a_first_plan_needs_little_memory(tmp_path: Path, config: str, options: str, needs: float) -> None:
    """In a process of its own, so that its memory is counted with torch's: less than the weights alone would take."""
    code = f"""
import json, os
os.environ["ONYX_HOME"] = {str(tmp_path)!r}
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig
from onyx.memory.planner import plan
from onyx.memory.recipe import Recipe
made = plan(Recipe(model={config}, {options}), effective_batch=32, devices=[{{"name": "A100", "memory_gb": 80}}])
most = next(int(text.split()[1]) for text in open("/proc/self/status") if text.startswith("VmHWM"))
print(json.dumps([most, made.devices[0].low]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    kilobytes, low = json.loads(done.stdout.splitlines()[-1])
    assert kilobytes < 2**20
    assert low > needs


def test_plans_and_devices_need_no_torch() -> None:
    code = """
import sys
import onyx.memory, onyx.memory.errors, onyx.memory.planner, onyx.memory.recipe
import onyx.memory.devices.device, onyx.memory.footprint.footprint, onyx.memory.footprint.json_cache
import onyx.memory.footprint.stored, onyx.memory.planning.alternatives, onyx.memory.planning.device_fit
import onyx.memory.planning.plan, onyx.memory.planning.timing
assert not {"torch", "transformers", "peft"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
