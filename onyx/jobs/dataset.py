"""Data as a caller of the library has it: texts, rows, or any data set with a length and items."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onyx import fs

INLINE_BYTES = 1 << 20
"""Up to this much data travels inside of the job; more is written to a file first."""

KEYS = {"text", "prompt", "messages", "input", "chosen"}
"""A row has one of these; the job looks at the rest, line by line."""


@dataclass(frozen=True)
class PreparedTexts:
    """What `prepare_dataset` returns: texts and how to take them."""

    texts: tuple[str, ...]
    model_name: str
    max_length: int
    batch_size: int

    def __len__(self) -> int:
        return len(self.texts)


def data_fields(dataset: Any, home: Path) -> dict[str, Any]:
    """The fields of a DataSpec for `dataset`."""
    if isinstance(dataset, PreparedTexts):
        return _fields([{"text": text} for text in dataset.texts], home) | {"max_length": dataset.max_length}
    return _fields([_row(item) for item in _items(dataset)], home)


def _items(dataset: Any) -> Iterator[Any]:
    if isinstance(dataset, str | bytes | Mapping):
        raise ValueError("dataset must be a list of texts, rows or a data set, not one text or dict")  # noqa: TRY004
    if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"):
        return (dataset[index] for index in range(len(dataset)))
    if isinstance(dataset, Iterable):
        return iter(dataset)
    raise ValueError(f"dataset must be a list of texts, rows or a data set, got {type(dataset).__name__}")


def _row(item: Any) -> dict[str, Any]:
    if isinstance(item, str):
        return {"text": item}
    if isinstance(item, Mapping) and KEYS & set(item):
        return dict(item)
    raise ValueError(
        "each item of the dataset must be a text, or a dict with text, prompt and completion, messages, or for dpo "
        "input, preferred_output and non_preferred_output, or prompt, chosen and rejected; "
        f"got {type(item).__name__}. Tokens are made by the job, with the model's own tokenizer"
    )


def _fields(rows: list[dict[str, Any]], home: Path) -> dict[str, Any]:
    if not rows:
        raise ValueError("the dataset is empty: there is nothing to train on")
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if len(text) <= INLINE_BYTES:
        return {"rows": rows}
    path = home / "uploads" / f"{hashlib.sha256(text.encode()).hexdigest()}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    fs.write_text(path, text)  # durable: the job that names it is
    return {"path": str(path)}
