"""What everybody who works for a runner shares."""

import asyncio
from dataclasses import dataclass, field

from onyx.jobs.hold import Hold
from onyx.jobs.offer import Offered
from onyx.jobs.store import Store
from onyx.jobs.tally import Tally
from onyx.jobs.values import RunnerDevice
from onyx.jobs.work import Launcher
from onyx.settings import Settings


@dataclass(kw_only=True)
class Bench:
    """A runner's tools and what it has in hand."""

    settings: Settings
    store: Store
    launcher: Launcher
    runner_id: str
    offered: tuple[Offered, ...]
    holds: set[Hold] = field(default_factory=set)
    """Leases in hand, to be asked about when somebody nudges."""

    tally: Tally = field(default_factory=Tally)
    """What its jobs have done since it started."""

    trackers: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """By job: who tells W&B. They may outlive an attempt, and nothing waits for them but the runner's end."""

    stopping: bool = False
    """The runner was told to stop: ranks save, jobs go back to the queue."""

    @property
    def lent(self) -> list[RunnerDevice]:
        """All devices of this host, as the store knows them."""
        return [each.lent for each in self.offered]
