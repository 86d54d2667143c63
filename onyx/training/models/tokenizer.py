"""Loads a tokenizer and adds a pad token and a chat template if it has none."""

from pathlib import Path
from typing import Any

from onyx.training.contract.errors import ModelError

DEFAULT_CHAT_TEMPLATE = (
    "{{ bos_token or '' }}"
    "{% if tools %}{{ '### Tools:\n' + (tools | tojson) + '\n\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '### ' + message['role'] | capitalize + ':\n' + (message['content'] or '') }}"
    "{% if message['tool_calls'] %}{{ message['tool_calls'] | tojson }}{% endif %}"
    "{% if message['role'] == 'assistant' %}{{ eos_token or '' }}{% endif %}"
    "{{ '\n\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '### Assistant:\n' }}{% endif %}"
)
"""For models without a template. It is plain text, because new special tokens would have to be trained first."""


def load_tokenizer(directory: Path | str, *, remote_code: bool = False) -> Any:
    """The tokenizer of a resolved model. Save it with the trained model, which depends on what is added here."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True, trust_remote_code=remote_code)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise ModelError("tokenizer_unreadable", f"the model's tokenizer cannot be loaded: {_line(error)}") from error
    if not tokenizer.is_fast:
        raise ModelError(
            "tokenizer_unsupported",
            "the model's tokenizer does not report the positions of its tokens: give a model with a tokenizer.json",
        )
    if tokenizer.pad_token is None:
        # Labels and attention mask padding, so any known token will do.
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
    if not tokenizer.chat_template:
        tokenizer.chat_template = DEFAULT_CHAT_TEMPLATE
    return tokenizer


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).split("\n", 1)[0]
