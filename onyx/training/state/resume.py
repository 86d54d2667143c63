"""Where an attempt begins: at the job's last checkpoint, with the journal of all attempts before it."""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from onyx import fs
from onyx.training.contract import event_kinds
from onyx.training.contract.attempt import Attempt
from onyx.training.state import checkpoint
from onyx.training.state.events import Events
from onyx.training.state.journal import Journal, JournalLine, dump_lines, load_lines, read_journal
from onyx.training.state.progress import Progress, Steering

if TYPE_CHECKING:
    from onyx.training.rank.rank_group import Ranks

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ResumePoint:
    """The last checkpoint, if there is one, and the journal."""

    checkpoint: Path | None
    lines: list[JournalLine]


def find_resume_point(attempt: Attempt, ranks: "Ranks") -> ResumePoint:
    """Rank 0 reads the directory and all ranks follow: two readings might differ."""
    parent = attempt.job_dir / "checkpoints"
    text = ""
    if ranks.first:
        parent.mkdir(parents=True, exist_ok=True)
        fs.sweep(parent)
        fs.sweep(attempt.job_dir / "snapshots")
        found = _latest_sound(parent)
        lines = read_journal(attempt.job_dir, before=attempt.number)
        text = json.dumps({"checkpoint": found.name if found else None, "lines": dump_lines(lines)})
    answer = json.loads(ranks.broadcast(text))
    name = answer["checkpoint"]
    return ResumePoint(checkpoint=parent / name if name else None, lines=load_lines(answer["lines"]))


def start_or_resume(attempt: Attempt, point: ResumePoint, events: Events) -> tuple[Progress, Journal]:
    """The progress and journal to go on with. An event says from which update."""
    given = tuple(share.token_budget for share in attempt.shares)
    journal = Journal(events, point.lines)
    if point.checkpoint is None:
        spec = attempt.spec
        steering = Steering(budgets=given, window=spec.window, clipping=spec.training.gradient_clipping)
        events.emit(event_kinds.MESSAGE, "training begins")
        return Progress(steering=steering), journal
    progress = checkpoint.read_progress(point.checkpoint)
    where = {"update": progress.update, "samples": progress.samples}
    events.emit(event_kinds.MESSAGE, f"resumed from update {progress.update}", where)
    before = progress.steering
    if len(before.budgets) != len(given):
        events.emit(
            event_kinds.MESSAGE, f"{len(given)} ranks go on where {len(before.budgets)} stopped: equal within rounding"
        )
        progress.steering = before.model_copy(update={"budgets": given})
    return progress, journal


def _latest_sound(parent: Path) -> Path | None:
    """The newest readable checkpoint. A damaged one is skipped; the one before it is kept for this case."""
    for path in reversed(checkpoint.complete(parent)):
        try:
            checkpoint.read_progress(path)
            with safe_open(path / checkpoint.TENSORS, framework="pt"):
                return path
        except (OSError, ValueError, SafetensorError) as error:
            logger.warning("%s cannot be read: %s", path.name, error, extra={"action": "checkpoint_unsound"})
    return None
