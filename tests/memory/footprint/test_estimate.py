"""Accuracy at shapes and depths that no probe ran. `python -m benchmarks.memory` prints the whole table."""

from statistics import mean
from typing import Any

import pytest
import torch
from transformers import GPT2Config, MistralConfig, Qwen3MoeConfig

from benchmarks.memory_cases import FAMILIES, Case, bert, gpt2, held_out, live_error, llama, qwen2, qwen3
from onyx.memory.errors import ModelConfigError, PlanError
from onyx.memory.footprint.estimate import count, estimate, with_depth
from onyx.memory.footprint.model_builder import build, is_causal
from onyx.memory.footprint.probe import fake_copy, fake_tensors, token_trace
from onyx.memory.recipe import Lora, Recipe
from onyx.recipe.optimizer import make_optimizer

SHAPES = ((1, 60), (3, 201), (12, 40))
SAVING = {"gradient_checkpointing": True}

QUICK = [
    Case(name="GPT-2", config=gpt2(), shapes=SHAPES, options={"method": "lora", "lora": Lora(r=24, dropout=0.1)}),
    Case(name="Llama", config=llama(depth=5, vocabulary=7000), shapes=SHAPES),
    Case(name="Qwen2", config=qwen2(), shapes=SHAPES, options=SAVING),
    Case(name="BERT", config=bert(depth=5), shapes=SHAPES, options={"method": "lora"}),
]


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_it_predicts_what_training_takes(case: Case) -> None:
    errors = [error for _, _, error in live_error(case, estimate(case.config, case.recipe, "cpu"))]
    assert mean(map(abs, errors)) <= 0.005
    assert min(errors) >= -0.01


@pytest.mark.slow
def test_accuracy_over_all_held_out_cases() -> None:
    errors = [
        error for case in held_out() for _, _, error in live_error(case, estimate(case.config, case.recipe, "cpu"))
    ]
    assert len(errors) >= 40
    assert mean(map(abs, errors)) <= 0.005
    assert min(errors) >= -0.01


@pytest.mark.parametrize(
    "options", [{"precision": "bf16"}, pytest.param({"precision": "fp16", "method": "lora"}, marks=pytest.mark.slow)]
)
def test_mixed_precision_under_fake_tensors(options: dict[str, Any]) -> None:
    config = llama(depth=5)
    recipe = Recipe(model=config, max_length=128, **options)
    found = estimate(config, recipe, "cuda")
    with fake_tensors():
        whole = token_trace(fake_copy(build(config, recipe)), 5, 77, causal=True, precision=recipe.precision)
    assert found.peak(5, 77) == pytest.approx(whole.peak, rel=0.002)


def test_a_window_of_one_micro_batch_needs_less() -> None:
    config = llama()
    recipe = Recipe(model=config, max_length=128)
    found = estimate(config, recipe, "cpu")
    seen = token_trace(build(config, recipe, "cpu"), 4, 100, causal=True, micro_batches=1).peak
    assert found.peak(4, 100, accumulate=False) == pytest.approx(seen, rel=0.002)
    assert found.peak(4, 100) > seen


def test_on_a_gpu_attention_dropout_keeps_no_length_by_length() -> None:
    config = gpt2()
    recipe = Recipe(model=config, max_length=200)
    assert estimate(config, recipe, "cuda").peak(1, 200) < estimate(config, recipe, "cpu").peak(1, 200)


@pytest.mark.parametrize("length", [200, pytest.param(50, marks=pytest.mark.slow)])
def test_a_sliding_window_is_probed_on_the_right_side(length: int) -> None:
    config = MistralConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=500, max_position_embeddings=512, sliding_window=64,
    )  # fmt: skip
    recipe = Recipe(model=config, max_length=length)
    seen = token_trace(build(config, recipe, "cpu"), 3, length, causal=is_causal(config, recipe)).peak
    assert estimate(config, recipe, "cpu").peak(3, length) == pytest.approx(seen, rel=0.005)


@pytest.mark.slow
def test_blocks_that_do_not_repeat_are_probed_whole() -> None:
    config = qwen3(depth=4)
    config.layer_types = ["full_attention"] * 3 + ["sliding_attention"]
    config.sliding_window = 300
    recipe = Recipe(model=config, max_length=100)
    seen = token_trace(build(config, recipe, "cpu"), 3, 100, causal=True).peak
    assert 0 <= estimate(config, recipe, "cpu").peak(3, 100) / seen - 1 <= 0.01


def test_more_than_the_model_has_positions() -> None:
    with pytest.raises(PlanError, match="beyond the model's 1024 positions"):
        estimate(GPT2Config(), Recipe(model=None, max_length=2000), "cpu")


def test_a_mixture_of_experts_is_refused_by_name() -> None:
    config = Qwen3MoeConfig(
        hidden_size=64, intermediate_size=128, moe_intermediate_size=32, num_experts=4, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, vocab_size=500, max_position_embeddings=64,
    )  # fmt: skip
    with pytest.raises(ModelConfigError, match="qwen3_moe model cannot be planned without running it"):
        estimate(config, Recipe(model=config, max_length=32), "cpu")


def test_a_config_of_another_depth_is_another_object() -> None:
    config = qwen3(depth=6)
    shallow = with_depth(config, 2)
    assert (shallow.num_hidden_layers, len(shallow.layer_types)) == (2, 2)
    assert (config.num_hidden_layers, len(config.layer_types)) == (6, 6)


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
