"""The model card: base model, data, loss, plan and versions."""

import json
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import onyx
from onyx.training.contract.attempt import Attempt, Result
from onyx.training.contract.metrics_csv import curve

PACKAGES = ("torch", "transformers", "peft", "safetensors", "tokenizers", "numpy")


def model_card(attempt: Attempt, result: Result, rows: list[dict[str, str]]) -> str:
    spec = attempt.spec
    adapter = spec.training.method == "lora" and not spec.training.merge_adapter
    sections = [
        _front(spec.model, adapter),
        f"# {spec.model}, fine-tuned by Onyx",
        f"Job `{attempt.job_id}`: {result.updates} updates, {result.samples} samples, "
        f"{result.trained_tokens} tokens, {result.skipped} windows skipped.",
        "## Loss\n\n" + _table(("update", "training loss"), [(update, f"{loss:.4f}") for update, loss in curve(rows)]),
        "## Epochs\n\n" + _epochs(result.epochs),
        "## Data\n\n" + _json(_data(attempt)),
        "## Training\n\n" + _json(spec.training.model_dump(mode="json") | {"window": spec.window}),
        *(["## Memory\n\n" + _memory(result)] if result.memory else []),
        "## Plan\n\n" + _json(attempt.plan | {"shares": [share.model_dump(mode="json") for share in attempt.shares]}),
        "## Versions\n\n" + _versions(),
    ]
    return "\n\n".join(sections) + "\n"


def _front(base: str, adapter: bool) -> str:
    library = "peft" if adapter else "transformers"
    # JSON is valid YAML and quotes any name that a user gave the model.
    return f"---\nbase_model: {json.dumps(base)}\nlibrary_name: {library}\ntags: [onyx, fine-tuned]\n---"


def _data(attempt: Attempt) -> dict[str, Any]:
    """Where the data comes from, without any sample."""
    data = attempt.spec.data
    given = next(name for name in ("texts", "rows", "path", "hub") if getattr(data, name) is not None)
    source = {"hub": data.hub} if given == "hub" else {"source": given}
    options = data.model_dump(mode="json", include={"max_length", "overlong", "evaluation_fraction"})
    return source | options | {"prepared": attempt.data_dir.name}


def _epochs(epochs: list[dict[str, Any]]) -> str:
    names = ["epoch", "train_loss", "evaluation_loss", "evaluation_accuracy"]
    return _table(names, [tuple(_short(entry.get(name)) for name in names) for entry in epochs])


def _memory(result: Result) -> str:
    rows = [
        (rank, each["predicted"], each["measured"], "" if each["error"] is None else f"{100 * each['error']:+.1f} %")
        for rank, each in enumerate(result.memory)
    ]
    return _table(("rank", "predicted bytes", "measured bytes", "error"), rows)


def _table(names: Any, rows: list[tuple[Any, ...]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def _short(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _json(value: dict[str, Any]) -> str:
    return f"```json\n{json.dumps(value, indent=2, sort_keys=True)}\n```"


def _versions() -> str:
    # Not the metadata of a package "onyx": on PyPI that name belongs to another project.
    rows = [("onyx", onyx.__version__), *((name, _version(name)) for name in PACKAGES)]
    return _table(("package", "version"), rows)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
