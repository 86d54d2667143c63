"""What everybody who works for a runner shares."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from onyx.jobs.launch.launcher import Launcher
from onyx.jobs.models import RunnerDevice
from onyx.jobs.runner.device_offers import Offered
from onyx.jobs.runner.lease_keeper import LeaseKeeper
from onyx.jobs.store.store import Store
from onyx.settings import Settings
from onyx.training.contract import event_kinds
from onyx.training.contract.attempt import Event


@dataclass
class JobTally:
    """Counted from what the ranks say."""

    events: int = 0
    trained_tokens: int = 0

    def heard(self, events: Sequence[Event], before: int) -> int:
        """Lines of an attempt that are in the store now. `before`, and what is returned: the tokens of its job."""
        self.events += len(events)
        reports = [event.data.get("trained_tokens") for event in events if event.kind == event_kinds.METRICS]
        after = max([tokens for tokens in reports if isinstance(tokens, int)], default=before)
        self.trained_tokens += max(0, after - before)
        return max(before, after)


@dataclass(kw_only=True)
class RunnerContext:
    """A runner's tools and what it has in hand."""

    settings: Settings
    store: Store
    launcher: Launcher
    runner_id: str
    offered: tuple[Offered, ...]
    keepers: set[LeaseKeeper] = field(default_factory=set)
    """Leases in hand, to be asked about when somebody nudges."""

    tally: JobTally = field(default_factory=JobTally)
    """What its jobs have done since it started."""

    trackers: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """By job: who tells W&B. They may outlive an attempt, and nothing waits for them but the runner's end."""

    stopping: bool = False
    """The runner was told to stop: ranks save, jobs go back to the queue."""

    @property
    def lent(self) -> list[RunnerDevice]:
        """All devices of this host, as the store knows them."""
        return [each.lent for each in self.offered]
