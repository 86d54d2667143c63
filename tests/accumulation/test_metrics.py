import math
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from onyx.accumulation.engine import MetricsTracker


class Wandb(SimpleNamespace):
    """A stand-in for the wandb module that records the calls of `log`."""

    def __init__(self, run: object = "a run") -> None:
        super().__init__(run=run, calls=[])

    def log(self, data: dict[str, float], step: int, commit: bool) -> None:
        self.calls.append((dict(data), step, commit))


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Wandb:
    module = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_rows_are_kept() -> None:
    tracker = MetricsTracker(use_wandb=False, gradient_accumulation_steps=2)
    before = time.time()
    for value in (4.0, 3.0, 2.0):
        tracker.log_scalar("loss", value)
    tracker.log_scalar("norm", 1.0, step=7)
    rows = tracker.get_step_metrics()
    assert set(rows[0]) == {"step", "effective_step", "metric", "value", "timestamp"}
    assert [(row["step"], row["effective_step"], row["metric"], row["value"]) for row in rows] == [
        (0, 0, "loss", 4.0),
        (1, 0, "loss", 3.0),
        (2, 1, "loss", 2.0),
        (0, 7, "norm", 1.0),
    ]
    assert rows[0]["timestamp"] >= before


def test_wandb_commits_once_per_effective_step(wandb: Wandb) -> None:
    tracker = MetricsTracker(gradient_accumulation_steps=4)
    for batch in range(8):
        tracker.log_scalar("loss", 8.0 - batch, step=batch // 4)
        tracker.log_scalar("rate", 0.1, step=batch // 4)
    assert wandb.calls == [({"loss": 5.0, "rate": 0.1}, 0, True)]
    tracker.flush()
    tracker.flush()
    assert wandb.calls[1:] == [({"loss": 1.0, "rate": 0.1}, 1, True)]


def test_commit_false_sends_nothing(wandb: Wandb) -> None:
    tracker = MetricsTracker()
    tracker.log_scalar("a", 1.0, step=0)
    tracker.log_scalar("b", 2.0, step=1, commit=False)
    assert wandb.calls == []


def test_without_a_run_it_warns_once_and_keeps_rows(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", Wandb(run=None))
    tracker = MetricsTracker()
    for step in range(4):
        tracker.log_scalar("loss", 1.0, step=step)
    assert caplog.text.count("no W&B run is open") == 1
    assert len(tracker.get_step_metrics()) == 4


def test_without_wandb_it_keeps_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    tracker = MetricsTracker(use_wandb=True)
    tracker.log_scalar("loss", 1.0)
    tracker.flush()
    assert len(tracker.get_step_metrics()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps must be >= 1"),
        ({"gradient_accumulation_steps": math.nan}, "gradient_accumulation_steps must be >= 1"),
        ({"use_wandb": "yes"}, "use_wandb must be True or False"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MetricsTracker(**arguments)
    with pytest.raises(ValueError, match="step must be >= 0"):
        MetricsTracker(use_wandb=False).log_scalar("loss", 1.0, step=-1)
