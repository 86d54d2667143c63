"""Whether a plan joins samples."""

from typing import Any

import pytest
from transformers import AutoConfig, PretrainedConfig

from onyx.memory.device import Device
from onyx.memory.joining import joins
from onyx.memory.plan import Plan
from onyx.memory.planner import PlanRequest, plan
from onyx.memory.recipe import Recipe

GB = 2**30
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
    return joins(
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
