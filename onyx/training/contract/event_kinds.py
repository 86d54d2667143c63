"""The kinds of events: what ranks write in events.jsonl, and what the runner, the store and the API read."""

from typing import Final, Literal

MESSAGE: Final = "message"
"""For people alone."""

METRICS: Final = "metrics"
"""Numbers of an update."""

CHECKPOINT: Final = "checkpoint"
"""An update that the job can resume from."""

SNAPSHOT: Final = "snapshot"
"""An epoch's model was kept."""

MEMORY: Final = "memory"
"""Memory ran out and budgets fell. A line of the journal."""

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
