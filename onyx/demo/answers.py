"""Asks a model, in a process of its own, because the service and the demo import no torch.

`python -m onyx.demo.answers HOME MODEL TOKENS QUESTION…` writes a JSON list of answers. MODEL is a model's name or the
directory of a job's model.
"""

import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    home, model, longest, *questions = sys.argv[1:]
    answers = ask(load(Path(home), model), int(longest), questions)
    sys.stdout.write(json.dumps(answers) + "\n")


def load(home: Path, name: str) -> tuple[Any, Any]:
    """Model and tokenizer, loaded with transformers and peft alone. The base of an adapter may need no hub."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from onyx.training.contract.prepared import Roots
    from onyx.training.models.resolve import resolve

    path = Path(name) if Path(name).is_dir() else resolve(name, Roots(home=home))
    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    config = path / "adapter_config.json"
    base = json.loads(config.read_text())["base_model_name_or_path"] if config.exists() else None
    weights = path if base is None else resolve(base, Roots(home=home))
    model: Any = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)
    return (model if base is None else PeftModel.from_pretrained(model, path)).eval(), tokenizer


def ask(loaded: tuple[Any, Any], longest: int, questions: list[str]) -> list[str]:
    """The answer to each question, decoded greedily: the same in every run."""
    model, tokenizer = loaded
    answers = []
    for question in questions:
        chat = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        length = prompt["input_ids"].shape[1]
        out = model.generate(**prompt, max_new_tokens=longest, do_sample=False, pad_token_id=tokenizer.pad_token_id)
        answers.append(" ".join(tokenizer.decode(out[0, length:], skip_special_tokens=True).split()))
    return answers


if __name__ == "__main__":
    main()
