"""Pairs in the memory room: what their step is, and what it needs."""

import math

import pytest
import torch

from benchmarks.memory_cases import llama
from onyx.memory.devices.device import Device
from onyx.memory.footprint.model_builder import build
from onyx.memory.footprint.probe import token_trace
from onyx.memory.footprint.stored import footprint_of
from onyx.memory.footprint.training_step import (
    blank_batch,
    blank_pairs,
    log_probabilities,
    pair_loss_sum,
    reward_margins,
)
from onyx.memory.planner import plan
from onyx.memory.recipe import Recipe

CONFIG = llama(width=64, depth=3, vocabulary=500)


def test_an_answer_is_the_sum_of_its_label_tokens() -> None:
    model = build(CONFIG, Recipe(model=CONFIG), "cpu").eval()
    batch = blank_batch(2, 7, causal=True)
    batch.labels[0, 3:] = -100
    chances = model(input_ids=batch.input_ids).logits.log_softmax(-1)[..., 0]
    expected = torch.stack([chances[0, :3].sum(), chances[1].sum()])
    assert torch.allclose(log_probabilities(model, batch), expected, rtol=1e-5)


def test_a_pair_without_preference_costs_log_2() -> None:
    model = build(CONFIG, Recipe(model=CONFIG), "cpu").eval()
    assert pair_loss_sum(model, blank_pairs(3, 5)).item() == pytest.approx(3 * math.log(2), rel=1e-5)
    with pytest.raises(ValueError, match="comes with its reference"):
        reward_margins(model, blank_batch(2, 5, causal=True), 0.1)


@pytest.mark.parametrize("method", ["full", "lora"])
def test_the_footprint_is_that_of_real_pairs(method: str) -> None:
    recipe = Recipe(model=CONFIG, method=method, objective="dpo")  # type: ignore[arg-type]
    found = footprint_of(CONFIG, recipe, "cpu")
    seen = token_trace(build(CONFIG, recipe, "cpu"), 5, 40, causal=True, objective="dpo")
    assert found.peak(5, 40) == pytest.approx(seen.peak, rel=0.005)
    single = footprint_of(CONFIG, recipe.changed(objective="sft"), "cpu")
    assert found.peak(5, 40) == pytest.approx(single.peak(10, 40), rel=0.02)


def test_a_pair_is_two_rows_of_the_budget() -> None:
    card = Device.imagined({"name": "A100", "memory_gb": 4}, 0)
    pairs, single = (
        plan(Recipe(model=CONFIG, objective=each, max_length=64), effective_batch=2**20, devices=[card]).devices[0]
        for each in ("dpo", "sft")
    )
    assert pairs.micro_batch == pytest.approx(single.micro_batch / 2, rel=0.02)
    assert pairs.token_budget == pytest.approx(single.token_budget, rel=0.02)
    assert pairs.token_budget >= 2 * 64 * pairs.micro_batch
