"""Build a JobSpec from the documented arguments. Unknown names are refused."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from onyx import fs
from onyx.training.contract.spec import DataSpec, JobSpec, LoraSpec, TrainingSpec

_LORA = {f"lora_{name}": name for name in LoraSpec.model_fields}
_DATA = ("max_length", "overlong", "evaluation_fraction", "tolerated_bad_lines")
_JOB = ("max_memory_usage", "memory_safety_margin", "gpu_ids")


def job_spec(
    *,
    model: str,
    data: Mapping[str, Any],
    training: Mapping[str, Any],
    window: int,
    accumulation_steps: int | None = None,
    devices: int = 1,
    labels: Mapping[str, Any] | None = None,
    **more: Any,
) -> JobSpec:
    """The spec of a job, or ValueError with what to change.

    `training` takes the fields of TrainingSpec, `lora_r` and so on for an adapter, and those fields of data and job
    that users expect there (max_length, max_memory_usage …).
    """
    rest = dict(training)
    lora = {field: rest.pop(name) for name, field in _LORA.items() if name in rest}
    if lora:
        rest.setdefault("method", "lora")
    data = dict(data) | {name: rest.pop(name) for name in _DATA if name in rest}
    more |= {name: rest.pop(name) for name in _JOB if name in rest}
    if lora:
        rest["lora"] = lora
    try:
        return JobSpec(
            model=model,
            data=DataSpec.model_validate(data),
            training=TrainingSpec.model_validate(rest),
            window=window,
            accumulation_steps=accumulation_steps,
            devices=devices,
            labels=dict(labels or {}),
            **more,
        )
    except ValidationError as error:
        raise ValueError(explain(error)) from None


def explain(error: ValidationError) -> str:
    """What is wrong, field by field, in one sentence each."""
    return "; ".join(
        f"{'.'.join(str(part) for part in problem['loc']) or 'the request'}: {problem['msg']}"
        for problem in error.errors(include_url=False, include_context=False, include_input=False)
    )


INLINE_BYTES = 1 << 20
"""Data up to this size is stored with the job; more is written to a file first."""

KEYS = {"text", "prompt", "messages", "input", "chosen"}
"""A row has at least one of these keys. The job checks the rest, line by line."""


@dataclass(frozen=True)
class PreparedTexts:
    """What `prepare_dataset` returns: texts, and how to tokenise them."""

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
    fs.write_text(path, text)  # durable, like the job that names it
    return {"path": str(path)}
