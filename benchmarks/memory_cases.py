"""Cases of the memory benchmark and its tests, and how they are measured: peaks, growth, training in a limit."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from transformers import BertConfig, GPT2Config, LlamaConfig, Qwen2Config, Qwen3Config

from onyx.memory.devices.cpu import is_out_of_memory, limit_memory
from onyx.memory.devices.heap import trim_heap
from onyx.memory.devices.peak_memory import Watermark
from onyx.memory.footprint.calibrate import growth, prepare_process, train
from onyx.memory.footprint.footprint import Footprint
from onyx.memory.footprint.model_builder import build, is_causal
from onyx.memory.footprint.probe import token_trace
from onyx.memory.footprint.training_step import blank_batch, finish_update, loss_sum
from onyx.memory.recipe import Lora, Recipe
from onyx.recipe.optimizer import make_optimizer

TRAINED, OUT_OF_MEMORY, BROKEN = 0, 3, 4


@dataclass(frozen=True, kw_only=True)
class Case:
    """One recipe, and the shapes at which it is measured. No probe runs at these, nor at this depth."""

    name: str
    config: Any
    shapes: tuple[tuple[int, int], ...]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def recipe(self) -> Recipe:
        return Recipe(model=self.config, max_length=max(length for _, length in self.shapes), **self.options)


def gpt2(*, width: int = 96, depth: int = 6, vocabulary: int = 2000) -> Any:
    return GPT2Config(
        n_embd=width, n_layer=depth, n_head=4, vocab_size=vocabulary, n_positions=256, bos_token_id=0, eos_token_id=0
    )


def llama(*, width: int = 96, depth: int = 6, vocabulary: int = 2000) -> Any:
    return LlamaConfig(**_decoder(width, depth, vocabulary))


def qwen2(*, width: int = 96, depth: int = 6, vocabulary: int = 2000) -> Any:
    return Qwen2Config(**_decoder(width, depth, vocabulary))


def qwen3(*, width: int = 96, depth: int = 6, vocabulary: int = 2000) -> Any:
    return Qwen3Config(**_decoder(width, depth, vocabulary), head_dim=width // 4)


def bert(*, width: int = 96, depth: int = 6, vocabulary: int = 2000) -> Any:
    return BertConfig(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=depth,
        num_attention_heads=4,
        vocab_size=vocabulary,
    )


def _decoder(width: int, depth: int, vocabulary: int) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "intermediate_size": 3 * width,
        "num_hidden_layers": depth,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": vocabulary,
        "max_position_embeddings": 512,
    }


FAMILIES = {"GPT-2": gpt2, "Llama": llama, "Qwen2": qwen2, "Qwen3": qwen3, "BERT": bert}

SHAPES = ((1, 64), (3, 250), (12, 40))


def held_out() -> Iterator[Case]:
    """Along family, method, checkpointing, depth, vocabulary, rank, samples and length: 20 recipes, 60 points."""
    for name, family in FAMILIES.items():
        yield Case(name=f"{name} full", config=family(), shapes=SHAPES)
        lora = {"method": "lora", "lora": Lora(r=8)}
        yield Case(name=f"{name} LoRA r=8", config=family(depth=5), shapes=SHAPES, options=lora)
        saving = {"gradient_checkpointing": True}
        yield Case(name=f"{name} checkpointing", config=family(depth=9), shapes=SHAPES, options=saving)
        both = {"method": "lora", "lora": Lora(r=32, dropout=0.1), **saving}
        yield Case(
            name=f"{name} LoRA r=32 checkpointing, vocabulary 9000",
            config=family(vocabulary=9000),
            shapes=SHAPES,
            options=both,
        )


def grown() -> Iterator[Case]:
    """Processes of some 100 MB and more, for which the overhead is not the most of it."""
    shapes = ((2, 128), (6, 200))
    for name, family in FAMILIES.items():
        config = family(width=256, depth=4, vocabulary=8000)
        yield Case(name=f"{name} full", config=config, shapes=shapes)
        yield Case(name=f"{name} LoRA r=8", config=config, shapes=shapes[1:], options={"method": "lora"})
        saving = {"gradient_checkpointing": True}
        yield Case(name=f"{name} checkpointing", config=config, shapes=shapes, options=saving)


def grown_quick() -> Iterator[Case]:
    """Three of them, one per kind of recipe."""
    config = {"width": 256, "depth": 4, "vocabulary": 6000}
    yield Case(name="GPT-2 full", config=gpt2(**config), shapes=((3, 128),))
    yield Case(name="Llama LoRA", config=llama(**config), shapes=((4, 128),), options={"method": "lora"})
    yield Case(name="BERT saving", config=bert(**config), shapes=((3, 128),), options={"gradient_checkpointing": True})


def live_error(case: Case, footprint: Footprint) -> Iterator[tuple[tuple[int, int], int, float]]:
    """Of each shape: the measured peak of live tensor bytes, and by how much the prediction is off."""
    model = build(case.config, case.recipe, "cpu")
    for samples, length in case.shapes:
        seen = token_trace(model, samples, length, causal=is_causal(case.config, case.recipe)).peak
        yield (samples, length), seen, footprint.peak(samples, length) / seen - 1


def process_growth(case: Case, samples: int, length: int) -> int:
    """RssAnon at its most, since the fork, of a process that trains the case."""
    return growth(lambda: _train(case, samples, length))


def _train(case: Case, samples: int, length: int) -> None:
    prepare_process()
    model, causal = build(case.config, case.recipe, "cpu"), is_causal(case.config, case.recipe)
    train(model, lambda count: loss_sum(model, blank_batch(count, length, causal=causal)), samples, updates=2)


def trains(case: Case, samples: int, length: int, limit: int) -> bool:
    """Whether two updates go through in a process that may grow by `limit` bytes since its fork."""
    child = os.fork()
    if child == 0:
        os._exit(_train_within(case, samples, length, limit))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (TRAINED, OUT_OF_MEMORY):
        raise RuntimeError(f"the training process ended with {code}")
    return code == TRAINED


def _train_within(case: Case, samples: int, length: int, limit: int) -> int:
    """As a rank does it: weights and state, a warm-up micro-batch of the worst shape, then the limit."""
    try:
        mark = Watermark.begin(held=0)
        prepare_process()
        causal = is_causal(case.config, case.recipe)
        model = build(case.config, case.recipe, "cpu")
        optimizer = make_optimizer(model.parameters())
        for size in (1, samples):
            loss_sum(model, blank_batch(size, length, causal=causal)).backward()
        optimizer.zero_grad(set_to_none=True)
        trim_heap()
        limit_memory(max(1, limit - mark.grown()))
        for _ in range(2):
            for _ in range(2):
                loss_sum(model, blank_batch(samples, length, causal=causal)).backward()
            finish_update(optimizer)
    except (RuntimeError, MemoryError) as error:
        return OUT_OF_MEMORY if is_out_of_memory(error) else BROKEN
    return TRAINED


def largest(case: Case, length: int, limit: int, start: int) -> int:
    """The largest micro-batch that trains within the limit, by search around `start`; 0 when none does."""
    size = start
    while size and not trains(case, size, length, limit):
        size -= 1
    if size < start:
        return size
    while trains(case, size + 1, length, limit):
        size += 1
    return size
