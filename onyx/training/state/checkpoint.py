"""Checkpoints: what an attempt resumes from, to the bit. The last two are kept."""

import time
from pathlib import Path

from torch import Tensor, nn
from torch.optim import Optimizer

from onyx import fs
from onyx.training.state.progress import Progress
from onyx.training.state.tensor_files import read_tensors, write_tensors

KEPT = 2
SECONDS = 20.0
"""The shortest time between two saves."""

PAUSE_FACTOR = 20
"""After a save, training goes on for at least this many times its duration: saving costs at most 5 %."""

TENSORS, STATE = "tensors.safetensors", "state.json"


class CheckpointSchedule:
    """When the next checkpoint is due."""

    def __init__(self, every: int | None, update: int) -> None:
        self._every = every
        self._update = update
        self._saved_at = time.monotonic()
        self._took = 0.0
        self.total = 0.0
        """Seconds spent in saves."""

    def due(self, update: int) -> bool:
        if self._every is not None:
            return update - self._update >= self._every
        return time.monotonic() - self._saved_at >= max(SECONDS, PAUSE_FACTOR * self._took)

    def postpone(self, update: int) -> None:
        """Nothing was saved: the next try comes after a full interval."""
        self._update, self._saved_at = update, time.monotonic()

    def saved(self, update: int, seconds: float) -> None:
        self._update, self._took, self._saved_at = update, seconds, time.monotonic()
        self.total += seconds


def save(parent: Path, progress: Progress, model: nn.Module, optimizer: Optimizer) -> Path:
    """Write a checkpoint under a temporary name, sync it, then rename it."""
    target = parent / f"update-{progress.update:08}"
    # Windows that are skipped make no update, so a checkpoint of this update may be there from before them: replace it.
    if _is_same(target, progress):
        return target
    with fs.publish_directory(target) as part:
        write_tensors(part / TENSORS, _tensors(model, optimizer))
        (part / STATE).write_text(progress.model_dump_json(indent=1))
    for old in complete(parent)[:-KEPT]:
        fs.remove(old)
    return target


def restore(checkpoint: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Copy weights and optimizer state from the checkpoint. The optimizer's state must be allocated."""
    read_tensors(checkpoint / TENSORS, _tensors(model, optimizer))


def read_progress(checkpoint: Path) -> Progress:
    return Progress.model_validate_json((checkpoint / STATE).read_bytes())


def complete(parent: Path) -> list[Path]:
    """All checkpoints, oldest first. One that was interrupted has a temporary name."""
    return sorted(path for path in parent.glob("update-*") if (path / STATE).is_file())


def latest(parent: Path) -> Path | None:
    found = complete(parent)
    return found[-1] if found else None


def size(parent: Path) -> int:
    """Bytes of the last checkpoint, an estimate for the next one; 0 before the first."""
    last = latest(parent)
    return sum(path.stat().st_size for path in last.iterdir()) if last is not None else 0


def _is_same(target: Path, progress: Progress) -> bool:
    if not (target / STATE).is_file():
        return False
    stored = read_progress(target)
    return (stored.windows, len(stored.epochs)) == (progress.windows, len(progress.epochs))


def _tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Trained weights and AdamW's state of each, by name."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            tensors[f"weight.{name}"] = parameter
            tensors |= {f"{key}.{name}": value for key, value in optimizer.state[parameter].items()}
    return tensors
