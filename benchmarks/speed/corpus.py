"""What is trained on: real text of ragged length that every machine with Python has, and a synthetic set.

Samples are token ids, so that every contender gets the same ones and none is timed at tokenising.
"""

import inspect
import pkgutil
import sys
from collections.abc import Iterator
from importlib import import_module, metadata
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 8192
SHORTEST, LONGEST = 8, 256

QUIET = ("antigravity", "this", "idlelib", "lib2to3", "test", "tkinter", "turtledemo", "pip", "setuptools", "__main__")
"""Modules that do something when they are imported, or are not everywhere."""


def texts() -> list[str]:
    """Documentation strings of Python's own library, and the licenses of installed packages by paragraph."""
    found = dict.fromkeys(text.strip() for text in (*_documentation(), *_licenses()))
    return [text for text in found if len(text) > 20]


def train_tokenizer(lines: list[str]) -> Tokenizer:
    """A byte-pair tokenizer of the corpus' own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def real(tokenizer: Tokenizer, lines: list[str], count: int) -> list[list[int]]:
    """Samples of real text: `count` of them, again from the start where there are fewer."""
    encoded = [each.ids[:LONGEST] for each in tokenizer.encode_batch(lines)]
    usable = [ids for ids in encoded if len(ids) >= SHORTEST]
    order = np.random.default_rng(0).permutation(len(usable))
    return [usable[order[i % len(order)]] for i in range(count)]


def log_normal(count: int, vocabulary: int = VOCABULARY, median: float = 48, sigma: float = 0.8) -> list[list[int]]:
    """Random tokens of log-normal length."""
    random = np.random.default_rng(1)
    lengths = np.clip(random.lognormal(np.log(median), sigma, count), SHORTEST, LONGEST).astype(int)
    return [random.integers(1, vocabulary, int(length)).tolist() for length in lengths]


def _documentation() -> Iterator[str]:
    for found in sorted(pkgutil.iter_modules([str(Path(inspect.__file__).parent)]), key=lambda each: each.name):
        if found.name.startswith("_") or found.name in QUIET or found.name not in sys.stdlib_module_names:
            continue
        try:
            module = import_module(found.name)
        except Exception:  # noqa: S112 - a part of the library that this build lacks
            continue
        for _, member in inspect.getmembers(module, lambda each: inspect.isclass(each) or inspect.isroutine(each)):
            yield inspect.getdoc(member) or ""
            for _, method in inspect.getmembers(member, inspect.isroutine) if inspect.isclass(member) else ():
                yield inspect.getdoc(method) or ""


def _licenses() -> Iterator[str]:
    for each in sorted(metadata.distributions(), key=lambda each: each.metadata["Name"] or ""):
        for path in each.files or ():
            if "license" in path.name.lower() and path.suffix in ("", ".txt", ".md"):
                try:
                    yield from Path(str(path.locate())).read_text().split("\n\n")
                except (OSError, UnicodeDecodeError):
                    continue
