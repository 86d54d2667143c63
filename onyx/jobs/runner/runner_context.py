"""What the tasks of one runner share."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from onyx.jobs.launch.launcher import Launcher
from onyx.jobs.models import RunnerDevice
from onyx.jobs.notify.trackers import Trackers
from onyx.jobs.runner.device_offers import Offered
from onyx.jobs.runner.lease_keeper import LeaseKeeper
from onyx.jobs.store.store import Store
from onyx.settings import Settings
from onyx.training.contract import event_kinds
from onyx.training.contract.attempt import Event


@dataclass
class JobTally:
    """Counted from the events of ranks."""

    events: int = 0
    trained_tokens: int = 0

    def add(self, events: Sequence[Event], before: int) -> int:
        """Count an attempt's events, once they are in the store.

        `before` is the number of tokens that its job had trained on; the new number is returned.
        """
        self.events += len(events)
        reports = [event.data.get("trained_tokens") for event in events if event.kind == event_kinds.METRICS]
        after = max([tokens for tokens in reports if isinstance(tokens, int)], default=before)
        self.trained_tokens += max(0, after - before)
        return max(before, after)


@dataclass(kw_only=True)
class RunnerContext:
    """A runner's settings, store, launcher and devices, and its leases and trackers."""

    settings: Settings
    store: Store
    launcher: Launcher
    runner_id: str
    offered: tuple[Offered, ...]
    keepers: set[LeaseKeeper] = field(default_factory=set)
    """Of the jobs at hand: they send a heartbeat when a client wakes the runner."""

    tally: JobTally = field(default_factory=JobTally)
    """What its jobs have done since it started."""

    trackers: Trackers = field(init=False)

    stopping: bool = False
    """The runner got SIGTERM: ranks save, jobs go back to the queue."""

    def __post_init__(self) -> None:
        self.trackers = Trackers(self.settings, self.store, self.launcher)

    @property
    def lent(self) -> list[RunnerDevice]:
        """All devices of this host, as the store knows them."""
        return [each.lent for each in self.offered]
