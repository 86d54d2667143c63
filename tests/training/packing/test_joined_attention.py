"""Samples joined in one row: the model computes for each what it computes for it alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from onyx.memory.footprint.training_step import Batch, logits_of
from onyx.memory.planning.speed_choices import FAMILIES
from onyx.training.loss.objective import loss_and_correct
from onyx.training.packing.joined_attention import attend_joined
from onyx.training.packing.samples import blank_row, row_of
from onyx.training.prepare.cpu_precision_probe import precision_trouble
from tests.training.job import Job, distance, make_model, same, write_data

CPU = torch.device("cpu")
VOCABULARY = 50
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DROPOUTS = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}


def model_of(family: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SIZES, **DROPOUTS, **changes))  # type: ignore[no-untyped-call]
    return model.train()


def samples_of(lengths: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(0)
    return [(tokens, tokens) for tokens in (generator.integers(3, VOCABULARY, size=n) for n in lengths)]


def gradients(model: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


def alone(model: Any, samples: list[tuple[np.ndarray, np.ndarray]]) -> torch.Tensor:
    """Logits of every token, one sample at a time, as transformers does it."""
    rows = [torch.from_numpy(tokens)[None] for tokens, _ in samples]
    plain = [Batch(input_ids=row, labels=row, attention_mask=None) for row in rows]
    return torch.cat([logits_of(model, batch) for batch in plain])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gives_each_sample_what_it_gives_it_alone(family: str) -> None:
    model, samples = model_of(family), samples_of([9, 7, 7, 7, 3, 1])
    expected = alone(model, samples)
    slopes = gradients(model, expected.square().sum())
    attend_joined(model)
    found = logits_of(model, row_of(samples, CPU))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)
    for name, slope in gradients(model, found.square().sum()).items():
        torch.testing.assert_close(slope, slopes[name], rtol=1e-4, atol=1e-5)


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=12))
@settings(max_examples=40, deadline=None)
def test_any_lengths(lengths: list[int]) -> None:
    model, samples = model_of("llama"), samples_of(lengths)
    expected = alone(model, samples)
    attend_joined(model)
    torch.testing.assert_close(logits_of(model, row_of(samples, CPU)), expected, rtol=1e-5, atol=2e-6)


def test_no_sample_sees_another() -> None:
    """The logits of the other samples keep their bits."""
    model, samples = model_of("llama"), samples_of([8, 8, 5])
    attend_joined(model)
    before = logits_of(model, row_of(samples, CPU))
    samples[1] = (samples[1][0] + 1, samples[1][1])
    after = logits_of(model, row_of(samples, CPU))
    assert torch.equal(after[:8], before[:8])
    assert torch.equal(after[16:], before[16:])
    assert not torch.equal(after[8:16], before[8:16])


def test_what_is_not_joined_goes_as_before() -> None:
    """Rows with a mask, as in generation."""
    model = model_of("llama").eval()
    ids = torch.randint(3, VOCABULARY, (2, 6))
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    before = model(input_ids=ids, attention_mask=mask).logits
    answer = model.generate(ids, attention_mask=mask, max_new_tokens=4, do_sample=False)
    attend_joined(model)
    assert torch.equal(model(input_ids=ids, attention_mask=mask).logits, before)
    assert torch.equal(model.generate(ids, attention_mask=mask, max_new_tokens=4, do_sample=False), answer)


def test_with_gradient_checkpointing() -> None:
    model, batch = model_of("llama"), row_of(samples_of([9, 4, 4]), CPU)
    attend_joined(model)
    plain = gradients(model, loss_and_correct(model, batch)[0])
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    again = gradients(model, loss_and_correct(model, batch)[0])
    assert all(torch.equal(again[name], slope) for name, slope in plain.items())


def test_in_mixed_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONYX_HOME", str(tmp_path))
    if precision_trouble("bf16"):
        pytest.skip("this CPU cannot do bf16")
    model, samples = model_of("llama"), samples_of([9, 7, 7, 1])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = alone(model, samples)
        attend_joined(model)
        found = logits_of(model, row_of(samples, CPU))
    assert found.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
    assert gradients(model, found.float().square().sum())


def test_compilers_see_the_operation_as_it_is() -> None:
    """Its fake results have the right shapes and strides, and its gradients are right."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 12, 4, 8, generator=generator).transpose(1, 2).detach().requires_grad_()
    key, value = (torch.randn(1, 12, 2, 8, generator=generator).transpose(1, 2).detach() for _ in range(2))
    runs = blank_row(3, 4, CPU).runs
    torch.library.opcheck(
        torch.ops.onyx.joined_attention.default, (query, key.requires_grad_(), value.requires_grad_(), runs, 0.3)
    )


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_job_comes_to_the_weights_of_a_padded_one(job: Job, method: str) -> None:
    job.training = {"epochs": 1, "method": method}
    padded, joined = job.twin("padded").finish(), job.twin("joined", layout="joined").finish()
    assert distance(joined.weights(), padded.weights()) < 1e-5
    assert not same(joined.weights(), padded.weights())  # the sums were computed in another order


def test_out_of_memory_is_the_update_of_one_that_cut_so_at_once(job: Job, tmp_path: Path) -> None:
    """By a real limit, with a vocabulary that makes a micro-batch of 1024 tokens take about 100 MB."""
    job.model = make_model(tmp_path, vocab_size=8192)
    job.data = write_data(tmp_path / "data", [int(n) for n in np.random.default_rng(1).integers(8, 65, size=64)])
    job.budgets, job.window, job.training, job.layout = [1024], 32, {"epochs": 1}, "joined"
    weights = 3 * 616_768 * 4
    job.memory = [weights + 85 * 2**20]
    job.finish()
    (event,) = [event for event in job.events if event.kind == "memory"]
    (budget,) = event.data["budgets"]
    assert budget <= 512
    finer = job.twin("finer", budgets=[budget], memory=None).finish()
    assert same(finer.weights(), job.weights())
