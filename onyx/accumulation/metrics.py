"""Document 003's metrics tracker: keeps one row per value and sends W&B one commit per effective step."""

import importlib
import logging
import time
from dataclasses import dataclass
from typing import Any

from onyx.accumulation import check

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoggedMetric:
    """One logged value."""

    step: int
    """How many values of this metric were logged before this one: the number of its micro-batch."""

    effective_step: int
    """The update it belongs to."""

    metric: str
    value: float
    timestamp: float
    """Seconds since the epoch."""


class MetricsTracker:
    """Logs scalars once per update, however many micro-batches an update has."""

    def __init__(self, use_wandb: bool = True, gradient_accumulation_steps: int = 1) -> None:
        self.use_wandb = check.flag("use_wandb", use_wandb)
        self.gradient_accumulation_steps = check.whole("gradient_accumulation_steps", gradient_accumulation_steps)
        self._rows: list[LoggedMetric] = []
        self._logged: dict[str, int] = {}
        self._pending: dict[str, float] = {}
        self._pending_step: int | None = None
        self._wandb: Any = _find_wandb() if use_wandb else None

    def log_scalar(self, name: str, value: float, step: int | None = None, commit: bool = True) -> None:
        """Log a value at effective step `step`; without one, `gradient_accumulation_steps` values make a step.

        W&B gets one commit per effective step, when the step changes. With `commit=False` this call sends nothing.
        """
        logged = self._logged.get(name, 0)
        effective = logged // self.gradient_accumulation_steps if step is None else step
        check.whole("step", effective, at_least=0)
        self._logged[name] = logged + 1
        self._rows.append(LoggedMetric(logged, effective, name, float(value), time.time()))
        if self._wandb is None:
            return
        if commit and self._pending_step not in (None, effective):
            self.flush()
        self._pending[name] = float(value)
        self._pending_step = effective

    def flush(self) -> None:
        """Send the values of the last effective step. Call it when training ends."""
        pending, step = self._pending, self._pending_step
        self._pending, self._pending_step = {}, None
        if self._wandb is None or not pending:
            return
        if getattr(self._wandb, "run", self) is None:
            logger.warning("no W&B run is open (call wandb.init first): metrics are kept here only")
            self._wandb = None
            return
        self._wandb.log(pending, step=step, commit=True)

    def get_step_metrics(self) -> list[dict[str, Any]]:
        """All rows, oldest first."""
        return [vars(row).copy() for row in self._rows]


def _find_wandb() -> Any:
    """The wandb module, or None where it is not installed: missing metrics must not stop training."""
    try:
        return importlib.import_module("wandb")
    except ImportError:
        logger.info("wandb is not installed: metrics are kept here only")
        return None
