import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, DistilBertConfig, GPT2Config, PretrainedConfig

from benchmarks.memory_cases import bert, gpt2, llama
from onyx.memory.errors import ModelConfigError, ModelNotFoundError, PlanError
from onyx.memory.footprint.model_builder import build, check_length, is_causal, load_config, positions
from onyx.memory.recipe import Lora, Recipe


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def test_a_model_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no model config found for 'nobody/nothing'"):
        load_config(Recipe(model="nobody/nothing"))
    with pytest.raises(ModelNotFoundError, match=r"directory with a config\.json"):
        load_config(Recipe(model=str(tmp_path)))


@pytest.mark.parametrize("text", ["{}", "not json", '{"model_type": "unheard-of"}', "[]", '{"model_type": 3}'])
def test_a_config_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises((ModelConfigError, ModelNotFoundError)):
        load_config(Recipe(model=str(tmp_path)))


@pytest.mark.parametrize("model", [None, 3, "", ["gpt2"]])
def test_what_names_no_model(model: Any) -> None:
    with pytest.raises(PlanError, match="hub id, a directory or a transformers config"):
        load_config(Recipe(model=model))


def test_only_the_config_of_a_directory_is_read(tmp_path: Path) -> None:
    gpt2().save_pretrained(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["config.json"]
    model = build(load_config(Recipe(model=str(tmp_path))), Recipe(model=str(tmp_path)))
    assert all(each.is_meta for each in model.parameters())


def test_a_config_without_the_needed_fields(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 0}))
    recipe = Recipe(model=str(tmp_path))
    with pytest.raises(PlanError):
        build(load_config(recipe), recipe)
    with pytest.raises(ModelConfigError, match="no classification model can be built from this PreTrainedConfig"):
        build(PretrainedConfig(), Recipe(model=PretrainedConfig()))


def test_positions_and_length() -> None:
    assert positions(gpt2()) == 256
    with pytest.raises(PlanError, match="max_length 257 is beyond the model's 256 positions: give at most 256"):
        check_length(gpt2(), Recipe(model=gpt2(), max_length=257))
    check_length(gpt2(), Recipe(model=gpt2(), max_length=256))


def test_the_head_follows_the_architecture() -> None:
    auto = Recipe(model=None)
    assert is_causal(GPT2Config(), auto)
    assert not is_causal(BertConfig(), auto)
    assert not is_causal(GPT2Config(architectures=["GPT2ForSequenceClassification"]), auto)
    assert is_causal(BertConfig(is_decoder=True), auto)
    assert is_causal(BertConfig(), Recipe(model=None, task="causal-lm"))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_what_is_trained_is_float32_and_only_frozen_weights_are_half(precision: Any) -> None:
    full = build(llama(), Recipe(model=None, precision=precision))
    assert {each.dtype for each in full.parameters()} == {torch.float32}
    lora = build(llama(), Recipe(model=None, precision=precision, method="lora"))
    assert {each.dtype for each in lora.parameters() if each.requires_grad} == {torch.float32}
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    assert {each.dtype for each in lora.parameters() if not each.requires_grad} == {half}


def test_weights_stay_tied_on_meta() -> None:
    model: Any = build(gpt2(), Recipe(model=None))
    assert model.lm_head.weight is model.transformer.wte.weight


def test_an_adapter_beside_a_classifier() -> None:
    config = DistilBertConfig(dim=32, hidden_dim=64, n_layers=2, n_heads=2, vocab_size=100)
    trained = [
        name for name, each in build(config, Recipe(model=None, method="lora")).named_parameters() if each.requires_grad
    ]
    assert any("lora_A" in name for name in trained)
    assert any("classifier" in name for name in trained)


def test_layers_that_are_not_there() -> None:
    with pytest.raises(PlanError, match="target_modules"):
        build(bert(), Recipe(model=None, method="lora", lora=Lora(target_modules=("nothing",))))
