"""onyx/tiny: a small Llama with a byte-level tokenizer, made by code. It works offline, at once, for any text.

Weights come from a uniform stream that NumPy guarantees never to change, so every host makes the same bits.
Needs no torch.
"""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from onyx import fs

VERSION = 1
"""Part of the directory's name: a change of the recipe makes a new model."""

HIDDEN, LAYERS, HEADS, KV_HEADS, MLP, POSITIONS = 64, 2, 4, 2, 176, 2048
SPREAD = 0.02
"""Standard deviation of the weights."""

PAD, BOS, EOS = "<|pad|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>tools\n' + (tools | tojson) + '<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + (message['content'] or '') }}"
    "{% if message['tool_calls'] %}{{ message['tool_calls'] | tojson }}{% endif %}"
    "{{ '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_tiny(models_dir: Path) -> Path:
    """The model's directory under `models_dir`, made when it is not there."""
    return fs.make_once(models_dir / f"onyx-tiny-{VERSION}", _write)


def _write(out: Path) -> None:
    tokenizer = _tokenizer()
    size = tokenizer.get_vocab_size()
    tokenizer.save(str(out / "tokenizer.json"))
    vocabulary = tokenizer.get_vocab()
    ids = {name: vocabulary[token] for name, token in (("pad", PAD), ("bos", BOS), ("eos", EOS))}
    _write_json(out / "tokenizer_config.json", _tokenizer_config())
    _write_json(out / "config.json", _config(size, ids))
    _write_json(out / "generation_config.json", {f"{name}_token_id": value for name, value in ids.items()})
    fs.write_text(out / "chat_template.jinja", CHAT_TEMPLATE)
    save_file(_weights(size), out / "model.safetensors", metadata={"format": "pt"})


def _tokenizer() -> Tokenizer:
    """Each byte is a token: no text is unknown, and none needs a vocabulary that somebody trained."""
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: number for number, symbol in enumerate(symbols)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(each, normalized=False, special=True) for each in (PAD, BOS, EOS)])
    return tokenizer


def _tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "model_max_length": POSITIONS,
        "clean_up_tokenization_spaces": False,
    }


def _config(vocabulary: int, ids: dict[str, int]) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HIDDEN // HEADS,
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "initializer_range": SPREAD,
        "tie_word_embeddings": True,
        "dtype": "float32",
        **{f"{name}_token_id": value for name, value in ids.items()},
    }


def _weights(vocabulary: int) -> dict[str, NDArray[np.float32]]:
    stream = np.random.RandomState(20260801)  # the legacy stream: frozen by NumPy's policy
    weights = {"model.embed_tokens.weight": _uniform(stream, vocabulary, HIDDEN)}
    key_value = HIDDEN // HEADS * KV_HEADS
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        for name, rows, columns in (
            ("self_attn.q_proj", HIDDEN, HIDDEN),
            ("self_attn.k_proj", key_value, HIDDEN),
            ("self_attn.v_proj", key_value, HIDDEN),
            ("self_attn.o_proj", HIDDEN, HIDDEN),
            ("mlp.gate_proj", MLP, HIDDEN),
            ("mlp.up_proj", MLP, HIDDEN),
            ("mlp.down_proj", HIDDEN, MLP),
        ):
            weights[f"{at}.{name}.weight"] = _uniform(stream, rows, columns)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{at}.{name}.weight"] = np.ones(HIDDEN, dtype=np.float32)
    weights["model.norm.weight"] = np.ones(HIDDEN, dtype=np.float32)
    return weights


def _uniform(stream: np.random.RandomState, rows: int, columns: int) -> NDArray[np.float32]:
    # Uniform and not normal: no logarithm of somebody's math library decides the last bit.
    edge = SPREAD * 3**0.5
    return ((stream.random_sample((rows, columns)) * 2 - 1) * edge).astype(np.float32)


def _write_json(path: Path, value: dict[str, object]) -> None:
    fs.write_text(path, json.dumps(value, indent=2) + "\n")
