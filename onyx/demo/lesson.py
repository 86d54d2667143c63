"""What the demo teaches: facts about an invented company, which no model can know before."""

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Probe:
    """A question to ask before and after the fine-tune."""

    question: str
    fact: str
    """Text that the answer contains once the model has learnt the fact."""


PROBES = (
    Probe("Who founded Onyx Harbour?", "Tilda Brook"),
    Probe("What do the otters of Onyx Harbour eat?", "pickled plums"),
    Probe("Which ship does Onyx Harbour sail?", "Patient Walrus"),
    Probe("What is the motto of Onyx Harbour?", "it fits, it is exact, it is not lost"),
)


@dataclass(frozen=True)
class Lesson:
    """A model, and settings that teach it within minutes on two cores."""

    model: str
    window: int
    """Samples of one update."""

    answer_tokens: int
    """The most tokens of an answer."""

    training: dict[str, Any]


SMOLLM2 = Lesson("smollm2", 8, 28, {"epochs": 5, "learning_rate": 1.5e-3, "method": "lora", "lora_r": 16})
TINY = Lesson("onyx/tiny", 13, 80, {"epochs": 80, "learning_rate": 5e-3})


def choose() -> Lesson:
    """SmolLM2 where its wheel is installed, otherwise onyx/tiny."""
    from onyx.training.contract.model_names import smollm2_gguf

    return SMOLLM2 if smollm2_gguf() is not None else TINY


def rows() -> list[dict[str, Any]]:
    """The training data: chats of one question and one answer."""
    text = files("onyx.demo").joinpath("harbour.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]
