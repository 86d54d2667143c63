"""What a job publishes loads with transformers and PEFT."""

from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM, AutoTokenizer

import onyx
from onyx.training.export.publish import expired_snapshots
from onyx.training.rank.run import Run
from tests.training.job import Job, run_inline

TOKENS = torch.tensor([[5, 12, 19, 26, 33]])


def train(job: Job, **training: Any) -> Run:
    job.training = {"epochs": 1, **training}
    return run_inline(job)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(input_ids=TOKENS).logits
    return found


def test_a_full_model(job: Job) -> None:
    run = train(job)
    published = AutoModelForCausalLM.from_pretrained(job.dir / "model")
    assert torch.equal(logits(published), logits(run.step.model))
    snapshot = AutoModelForCausalLM.from_pretrained(job.dir / "snapshots" / "epoch-1")
    assert torch.equal(logits(published), logits(snapshot))
    tokenizer = AutoTokenizer.from_pretrained(job.dir / "model")
    assert tokenizer.decode(tokenizer("hello")["input_ids"]) == "hello"
    card = (job.dir / "model" / "README.md").read_text()
    for part in (
        'base_model: "onyx/tiny"',
        "## Loss",
        "## Data",
        "## Plan",
        '"token_budget": 128',
        "| torch |",
        f"| onyx | {onyx.__version__} |",
    ):
        assert part in card


def test_an_adapter(job: Job) -> None:
    run = train(job, method="lora", lora={"dropout": 0.1})
    files = {path.name for path in (job.dir / "model").iterdir()}
    assert "adapter_model.safetensors" in files
    assert "model.safetensors" not in files
    published = AutoPeftModelForCausalLM.from_pretrained(job.dir / "model")
    assert torch.equal(logits(published), logits(run.step.model))
    base = AutoModelForCausalLM.from_pretrained(job.model)
    assert not torch.equal(logits(base), logits(published))


def test_a_merged_adapter(job: Job) -> None:
    train(job, method="lora", merge_adapter=True)
    published = AutoModelForCausalLM.from_pretrained(job.dir / "model")
    assert not (job.dir / "model" / "adapter_config.json").exists()
    adapter = AutoPeftModelForCausalLM.from_pretrained(job.dir / "snapshots" / "epoch-1")
    assert torch.allclose(logits(published), logits(adapter), atol=1e-5)


@pytest.mark.parametrize("method", ["full", "lora"])
def test_gradient_checkpointing_gives_the_same_update(job: Job, method: str) -> None:
    plain, saving = job, job.twin("saving")
    weights = []
    for each, on in ((plain, False), (saving, True)):
        train(each, method=method, gradient_checkpointing=on)
        weights.append(each.weights())
    for name in weights[0]:
        assert torch.allclose(weights[0][name], weights[1][name], atol=1e-6)


@pytest.mark.parametrize(
    ("losses", "gone"),
    [([3, 2, 1], []), ([1, 2, 3, 4], []), ([1, 2, 3, 4, 5], [2]), ([5, 4, 3, 2, 1], [1, 2]), ([None] * 5, [2])],
)
def test_the_best_and_the_last_three_snapshots_are_kept(losses: list[float | None], gone: list[int]) -> None:
    entries = [{"epoch": number + 1, "train_loss": loss} for number, loss in enumerate(losses)]
    assert expired_snapshots(entries) == gone
