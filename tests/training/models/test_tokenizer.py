"""Loading tokenizers."""

import json
import shutil
from pathlib import Path

import pytest

from onyx.training.contract.errors import ModelError
from onyx.training.models.tokenizer import DEFAULT_CHAT_TEMPLATE, load_tokenizer


@pytest.fixture
def bare(tmp_path: Path, tiny: Path) -> Path:
    """onyx/tiny without pad token and chat template."""
    shutil.copytree(tiny, tmp_path / "bare")
    (tmp_path / "bare" / "chat_template.jinja").unlink()
    path = tmp_path / "bare" / "tokenizer_config.json"
    config = json.loads(path.read_text())
    del config["pad_token"]
    path.write_text(json.dumps(config))
    return tmp_path / "bare"


def test_missing_parts_are_added_and_saved(bare: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(bare)
    assert tokenizer.pad_token == tokenizer.eos_token
    assert tokenizer.chat_template == DEFAULT_CHAT_TEMPLATE
    tokenizer.save_pretrained(tmp_path / "result")
    assert load_tokenizer(tmp_path / "result").chat_template == DEFAULT_CHAT_TEMPLATE


def test_the_default_template_names_the_roles(bare: Path) -> None:
    tokenizer = load_tokenizer(bare)
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    chat = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "1"},
        {"role": "assistant", "content": "one"},
    ]
    text = tokenizer.apply_chat_template(chat, tools=[{"name": "f"}], tokenize=False, add_generation_prompt=True)
    assert text == (
        '<|im_start|>### Tools:\n[{"name": "f"}]\n\n### User:\nhi\n\n### Assistant:\n'
        '[{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]<|im_end|>\n\n'
        "### Tool:\n1\n\n### Assistant:\none<|im_end|>\n\n### Assistant:\n"
    )


def test_a_broken_tokenizer_is_a_model_error(bare: Path) -> None:
    (bare / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError):
        load_tokenizer(bare)
