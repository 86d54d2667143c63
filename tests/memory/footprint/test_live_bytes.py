"""The counter against torch's own allocator, which sees every byte."""

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.memory_cases import bert, gpt2, llama
from onyx.memory.footprint.live_bytes import Counter
from onyx.memory.footprint.model_builder import build, is_causal
from onyx.memory.footprint.probe import fake_copy, fake_tensors, token_trace
from onyx.memory.footprint.training_step import blank_batch, finish_update, loss_sum
from onyx.memory.recipe import Recipe
from onyx.recipe.optimizer import make_optimizer


def test_views_count_once_and_what_is_freed_counts_no_more() -> None:
    with Counter() as counter:
        tensor = torch.zeros(1000)
        view = tensor.view(10, 100)[2:]
        assert counter.live == 4000
        del tensor
        assert counter.live == 4000
        del view
        assert counter.live == 0
        assert counter.peak == 4000


def test_what_autograd_saves_counts_until_backward() -> None:
    weight = nn.Parameter(torch.ones(100))
    with Counter() as counter:
        loss = (weight * torch.ones(100)).exp().sum()
        assert counter.live == 400 + 400 + 4  # the factor, exp's result, the sum
        loss.backward()
        del loss
        assert counter.live == 400  # the gradient


@pytest.mark.filterwarnings("ignore")  # the profiler's own
@pytest.mark.parametrize("saving", [False, True])
@pytest.mark.parametrize("family", [gpt2, llama, bert])
def test_it_sees_what_the_allocator_sees(family: type, saving: bool) -> None:
    config = family(depth=3)
    recipe = Recipe(model=config, max_length=64, gradient_checkpointing=saving)
    model, causal = build(config, recipe, "cpu"), is_causal(config, recipe)
    seen = token_trace(model, 3, 64, causal=causal)
    allocated = _allocated(model, 3, 64, causal)
    # Checkpointing keeps the random state of every block, 5 kB that no operation made.
    assert seen.peak - seen.base == pytest.approx(allocated, rel=1e-4, abs=3 * 5200 if saving else 0)


@pytest.mark.parametrize("family", [gpt2, llama, bert])
def test_fake_and_real_agree(family: type) -> None:
    config = family(depth=3)
    recipe = Recipe(model=config, max_length=64)
    model, causal = build(config, recipe, "cpu"), is_causal(config, recipe)
    real = token_trace(model, 3, 64, causal=causal)
    with fake_tensors():
        fake = token_trace(fake_copy(model), 3, 64, causal=causal)
    assert fake.base == real.base
    assert fake.peak == pytest.approx(real.peak, rel=0.001)


def _allocated(model: nn.Module, samples: int, length: int, causal: bool) -> int:
    """The most bytes that the allocator gave out at once during an update of two micro-batches."""
    optimizer = make_optimizer(model.parameters())
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for _ in range(2):
            loss = loss_sum(model, blank_batch(samples, length, causal=causal))
            loss.backward()
            del loss
        finish_update(optimizer)
    results = profiler.profiler.kineto_results
    live = most = 0
    for event in results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            most = max(most, live)
    return most
