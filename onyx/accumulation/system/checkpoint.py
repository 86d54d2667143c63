"""The checkpoint of a trainer: a directory of safetensors and JSON files, published as a whole."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn import Module

from onyx.accumulation import check
from onyx.accumulation.system.checkpoint_dir import ABOUT, FORMAT, find_checkpoint, replace_checkpoint
from onyx.accumulation.system.results import HistoryEntry
from onyx.accumulation.system.statefile import read_state, write_state

_MODEL = "model.safetensors"
_TRAINING = "training.safetensors"
_ACCUMULATION = "accumulation.safetensors"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What a trainer resumes from."""

    epoch: int
    """Epochs finished."""

    first_epoch: int
    """Epochs finished when the run began, so that a resumed run ends after the same epoch."""

    history: list[HistoryEntry]

    model: dict[str, Any]
    """The state dict of the model: tensors by name, and the extra state of its modules."""

    training: dict[str, Any]
    """States of the optimizer, the scheduler and the loss scaler (None without one)."""

    accumulation: dict[str, Any] | None
    """State of the accumulator; None with `save_accumulation_state=False`."""


def write_checkpoint(path: str | os.PathLike[str], checkpoint: Checkpoint) -> None:
    """Save a checkpoint at `path`; a reader never sees half of it.

    FileExistsError if anything but a checkpoint or an empty directory stands there; it stays as it is.
    """
    from safetensors.torch import save_file

    with replace_checkpoint(path) as part:
        tensors = {
            n: v.detach().cpu().clone().contiguous() for n, v in checkpoint.model.items() if isinstance(v, Tensor)
        }
        others = {name: value for name, value in checkpoint.model.items() if not isinstance(value, Tensor)}
        save_file(tensors, part / _MODEL, metadata={"format": "pt"})
        write_state(part / _TRAINING, checkpoint.training | {"model": others})
        if checkpoint.accumulation is not None:
            write_state(part / _ACCUMULATION, checkpoint.accumulation)
        about = {
            "format": FORMAT,
            "epoch": checkpoint.epoch,
            "first_epoch": checkpoint.first_epoch,
            "history": checkpoint.history,
            "files": sorted(file.name for file in part.iterdir() if file.name != ABOUT),
        }
        (part / ABOUT).write_text(json.dumps(about, indent=1))


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Load what `write_checkpoint` saved. Anything else is a ValueError."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    target = find_checkpoint(path)
    if not target.is_dir():
        raise ValueError(f"no checkpoint at {path}: give the directory that save_checkpoint wrote")
    about = _about(target)
    try:
        model: dict[str, Any] = load_file(target / _MODEL)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{target / _MODEL} is damaged: {error}") from error
    training = read_state(target / _TRAINING)
    if not isinstance(training, dict) or set(training) != {"optimizer", "scheduler", "scaler", "model"}:
        raise ValueError(f"{target / _TRAINING} is not of a checkpoint")
    model |= training["model"]
    return Checkpoint(
        epoch=check.whole("epoch", about["epoch"], at_least=0),
        first_epoch=check.whole("first_epoch", about["first_epoch"], at_least=0),
        history=about["history"],
        model=model,
        training=training,
        accumulation=read_state(target / _ACCUMULATION) if _ACCUMULATION in about["files"] else None,
    )


def check_model(model: Module, saved: dict[str, Any]) -> None:
    """Raise ValueError for weights of another model. Changes nothing."""
    own = model.state_dict()
    wrong = sorted(set(own) ^ set(saved)) or [n for n in own if _shape(own[n]) != _shape(saved[n])]
    if wrong:
        raise ValueError(f"the checkpoint is of another model: {', '.join(wrong[:5])} do not match")


def _shape(value: Any) -> Any:
    return getattr(value, "shape", None)


def _about(target: Path) -> dict[str, Any]:
    try:
        about = json.loads((target / ABOUT).read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{target} is not a checkpoint: {ABOUT} cannot be read ({error})") from error
    keys = {"format", "epoch", "first_epoch", "history", "files"}
    if not isinstance(about, dict) or about.get("format") != FORMAT or set(about) != keys:
        raise ValueError(f"{target} is not a checkpoint of the format {FORMAT}")
    if not isinstance(about["history"], list) or not isinstance(about["files"], list):
        raise ValueError(f"{target / ABOUT} is damaged: history and files must be lists")  # noqa: TRY004
    return about
