"""Whether a plan compiles, and how it lays samples out."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, LlamaConfig, PretrainedConfig

from onyx.memory.devices.device import Device
from onyx.memory.planner import plan
from onyx.memory.planning.plan import Plan
from onyx.memory.planning.request import PlanRequest
from onyx.memory.planning.speed_choices import joins_samples
from onyx.memory.planning.timing import Timing, store_timing
from onyx.memory.recipe import Recipe
from tests.planner_cache import KNOWN_CPU

GB = 2**30
SLOW = Timing(per_micro_batch=0.0, per_token=0.01, per_update=0.0)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONYX_HOME", str(tmp_path))
    monkeypatch.setattr("onyx.memory.planning.speed_choices.shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr("onyx.memory.planning.device_fit.overhead_of", lambda _: KNOWN_CPU)


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
    monkeypatch.setattr("onyx.memory.planning.speed_choices.shutil.which", lambda _: None)
    planned = made(width=64, compile=True)
    assert not planned.compile
    assert any("no C++ compiler" in each for each in planned.warnings)


def test_the_compiler_needs_memory_beside_the_job() -> None:
    assert not timed(width=512, memory=GB).compile


SIZES = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
CPU = Device(kind="cpu", index=0, name="CPU", memory_total=4 * GB, memory_free=4 * GB, cores=1)


def config_of(family: str, **changes: Any) -> PretrainedConfig:
    return AutoConfig.for_model(family, **SIZES | changes)


def joined(config: PretrainedConfig, label: str = "cpu:0", **recipe: Any) -> bool:
    wanted = Recipe(model=config, max_length=32, task="causal-lm", **recipe)
    return joins_samples(
        config, PlanRequest(recipe=wanted, effective_batch=8, devices=[CPU], lengths=[32] * 8, quick=True), [label]
    )


def test_a_job_of_a_known_family_on_a_cpu_joins() -> None:
    config = config_of("llama")
    planned = plan(Recipe(model=config, max_length=32), effective_batch=8, devices=[CPU], lengths=[32], quick=True)
    assert planned.layout == "joined"
    assert Plan.from_json(planned.to_json()) == planned


@pytest.mark.parametrize(
    "config",
    [
        config_of("opt"),  # not known to be fit for it
        config_of("llama", attention_dropout=0.1),
        config_of("mistral", sliding_window=16),
        config_of("llama", auto_map={"AutoModel": "code.Model"}),  # runs code of its own
    ],
    ids=["unknown", "dropout", "window", "code"],
)
def test_others_are_padded(config: PretrainedConfig) -> None:
    assert not joined(config)


def test_a_window_that_no_sample_meets_is_none() -> None:
    assert joined(config_of("mistral", sliding_window=64))


def test_cards_and_pairs_are_padded() -> None:
    assert joined(config_of("llama"))
    assert not joined(config_of("llama"), "cuda:0")
    assert not joined(config_of("llama"), objective="dpo")
