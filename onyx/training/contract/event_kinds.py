"""The kinds of events. Ranks write them in events.jsonl; the runner, the store and the API read them."""

from typing import Final, Literal

MESSAGE: Final = "message"
"""A text for people; no program reads it."""

METRICS: Final = "metrics"
"""Numbers of an update."""

CHECKPOINT: Final = "checkpoint"
"""The job can resume from this update."""

SNAPSHOT: Final = "snapshot"
"""An epoch's model was kept."""

MEMORY: Final = "memory"
"""Memory ran out and the budgets were lowered. A line of the journal."""

SKIP: Final = "skip"
"""A window without an update."""

CONFIG: Final = "config"
"""A change of config took effect. A line of the journal."""

EVALUATION: Final = "evaluation"
"""An epoch's evaluation."""

PROBE: Final = "probe"
"""What was measured before the first window."""

STATUS: Final = "status"
"""The job's status changed. Written by the store, never by a rank."""

RankEventKind = Literal[
    "message", "metrics", "checkpoint", "snapshot", "memory", "skip", "config", "evaluation", "probe"
]
EventKind = RankEventKind | Literal["status"]
