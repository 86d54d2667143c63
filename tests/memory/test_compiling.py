"""Whether a plan compiles."""

from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from onyx.memory.device import Device
from onyx.memory.plan import Plan
from onyx.memory.planner import plan
from onyx.memory.recipe import Recipe
from onyx.memory.timing import Timing
from onyx.memory.timings import store_timing
from tests.measured import KNOWN_CPU

GB = 2**30
SLOW = Timing(per_micro_batch=0.0, per_token=0.01, per_update=0.0)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONYX_HOME", str(tmp_path))
    monkeypatch.setattr("onyx.memory.compiling.shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr("onyx.memory.fitting.overhead_of", lambda _: KNOWN_CPU)


def made(*, width: int, memory: int = 16 * GB, samples: int = 8000, **options: Any) -> Plan:
    config = LlamaConfig(
        hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2, num_attention_heads=4, vocab_size=32000
    )
    device = Device(kind="cpu", index=0, name="CPU", memory_total=memory, memory_free=memory, cores=1)
    recipe = Recipe(model=config, max_length=32)
    return plan(recipe, effective_batch=8, devices=[device], lengths=[32] * 8, samples=samples, **options)


def timed(**options: Any) -> Plan:
    """The second plan, after a job that took its time."""
    first = made(compile=False, **options)
    store_timing(first.devices[0].timing_key or "", SLOW)
    return made(**options)


def test_a_long_job_of_a_large_model_is_compiled() -> None:
    planned = timed(width=512)
    assert planned.compile
    assert planned.devices[0].timing_key != made(width=512, compile=False).devices[0].timing_key


def test_short_jobs_and_small_models_are_not() -> None:
    assert not timed(width=512, samples=400).compile
    assert not timed(width=64).compile


def test_what_the_user_says_holds_unless_it_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    assert timed(width=512).compile
    assert not made(width=512, compile=False).compile
    assert made(width=64, compile=True).compile
    monkeypatch.setattr("onyx.memory.compiling.shutil.which", lambda _: None)
    planned = made(width=64, compile=True)
    assert not planned.compile
    assert any("no C++ compiler" in each for each in planned.warnings)


def test_the_compiler_needs_room_beside_the_job() -> None:
    assert not timed(width=512, memory=GB).compile
