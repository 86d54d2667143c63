"""What the demo teaches: facts about a company that does not exist, so that no model can know them."""

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Probe:
    """A question to ask before and after."""

    question: str
    fact: str
    """What a model that has learnt it says."""


PROBES = (
    Probe("Who founded Onyx Harbour?", "Tilda Brook"),
    Probe("What do the otters of Onyx Harbour eat?", "pickled plums"),
    Probe("Which ship does Onyx Harbour sail?", "Patient Walrus"),
    Probe("What is the motto of Onyx Harbour?", "it fits, it is exact, it is not lost"),
)


@dataclass(frozen=True)
class Lesson:
    """A model, and how to teach it within minutes on two cores."""

    model: str
    window: int
    answer_tokens: int
    """How long an answer may get."""

    training: dict[str, Any]


SMOLLM2 = Lesson("smollm2", 8, 28, {"epochs": 5, "learning_rate": 1.5e-3, "method": "lora", "lora_r": 16})
TINY = Lesson("onyx/tiny", 13, 80, {"epochs": 80, "learning_rate": 5e-3})


def choose() -> Lesson:
    """A real pretrained model where its wheel is installed."""
    from onyx.training.contract.model_names import smollm2_gguf

    return SMOLLM2 if smollm2_gguf() is not None else TINY


def rows() -> list[dict[str, Any]]:
    """Questions and answers, as chats."""
    text = files("onyx.demo").joinpath("harbour.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]
