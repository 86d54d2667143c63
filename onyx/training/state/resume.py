"""Where an attempt begins: at the job's last checkpoint, with the journal of the attempts before it."""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from onyx import fs
from onyx.training.contract import event_kinds
from onyx.training.contract.attempt import Attempt
from onyx.training.state import checkpoint, journal
from onyx.training.state.events import Events
from onyx.training.state.journal import Journal, Line
from onyx.training.state.progress import Progress, Steering

if TYPE_CHECKING:
    from onyx.training.rank.rank_group import Ranks

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ResumePoint:
    """What an attempt begins with."""

    checkpoint: Path | None
    lines: list[Line]


def find_resume_point(attempt: Attempt, ranks: "Ranks") -> ResumePoint:
    """Rank 0 looks, and all follow: two looks at a directory might not see the same."""
    parent = attempt.job_dir / "checkpoints"
    text = ""
    if ranks.first:
        parent.mkdir(parents=True, exist_ok=True)
        fs.sweep(parent)
        fs.sweep(attempt.job_dir / "snapshots")
        found = _latest_sound(parent)
        lines = journal.read_journal(attempt.job_dir, before=attempt.number)
        text = json.dumps({"checkpoint": found.name if found else None, "lines": journal.dump(lines)})
    answer = json.loads(ranks.broadcast(text))
    name = answer["checkpoint"]
    return ResumePoint(checkpoint=parent / name if name else None, lines=journal.load(answer["lines"]))


def begin(attempt: Attempt, beginning: ResumePoint, events: Events) -> tuple[Progress, Journal]:
    """The progress to go on from, and says so."""
    given = tuple(share.token_budget for share in attempt.shares)
    log = Journal(events, beginning.lines)
    if beginning.checkpoint is None:
        spec = attempt.spec
        steering = Steering(budgets=given, window=spec.window, clipping=spec.training.gradient_clipping)
        events.emit(event_kinds.MESSAGE, "training begins")
        return Progress(steering=steering), log
    progress = checkpoint.read_progress(beginning.checkpoint)
    where = {"update": progress.update, "samples": progress.samples}
    events.emit(event_kinds.MESSAGE, f"resumed from update {progress.update}", where)
    before = progress.steering
    if len(before.budgets) != len(given):
        events.emit(
            event_kinds.MESSAGE, f"{len(given)} ranks go on where {len(before.budgets)} stopped: equal within rounding"
        )
        progress.steering = before.model_copy(update={"budgets": given})
    return progress, log


def _latest_sound(parent: Path) -> Path | None:
    """The newest checkpoint that can be read. One that a disk spoilt is passed over: that is what the other is for."""
    for path in reversed(checkpoint.complete(parent)):
        try:
            checkpoint.read_progress(path)
            with safe_open(path / checkpoint.TENSORS, framework="pt"):
                return path
        except (OSError, ValueError, SafetensorError) as error:
            logger.warning("%s cannot be read: %s", path.name, error, extra={"action": "checkpoint_unsound"})
    return None
