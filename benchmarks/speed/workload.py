"""A workload: one model, one set of samples, one effective batch, as files that every contender reads."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.speed.corpus import LONGEST, VOCABULARY


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What a contender is given."""

    model: str
    """A directory that transformers loads."""

    data: str
    """A JSON file with a list of samples, each a list of token ids."""

    window: int
    """Samples of an update."""

    micro_batch: int
    """Samples of a micro-batch, for contenders that take a fixed number."""

    updates: int
    skipped: int
    """Updates at the beginning that are not timed."""

    threads: int
    method: str = "full"
    learning_rate: float = 1e-4
    longest: int = LONGEST

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps(asdict(self)))
        return path

    @classmethod
    def read(cls, path: str | Path) -> "Workload":
        return cls(**json.loads(Path(path).read_text()))

    def samples(self) -> list[list[int]]:
        """All that the updates take, in order."""
        found: list[list[int]] = json.loads(Path(self.data).read_text())
        return found[: self.window * self.updates]


def make_llama(directory: Path, tokenizer: Any, *, width: int, depth: int) -> Path:
    """A small Llama-style model with tied embeddings and the corpus' tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=depth,
        num_attention_heads=max(1, width // 64),
        num_key_value_heads=max(1, width // 64),
        vocab_size=VOCABULARY,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(directory)
    ends = {"eos_token": "<|end|>", "pad_token": "<|end|>"}
    fast: Any = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **ends)  # type: ignore[no-untyped-call]
    fast.save_pretrained(directory)
    return directory
