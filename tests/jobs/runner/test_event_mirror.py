"""Each event of an attempt counts once, also when the store becomes unavailable between two writes about it."""

import itertools
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from onyx.jobs.errors import StoreUnavailableError
from onyx.jobs.event_file import EVENTS
from onyx.jobs.runner import event_mirror
from onyx.jobs.runner.event_mirror import EventMirror
from onyx.jobs.runner.lease_keeper import LeaseKeeper
from onyx.jobs.store.store import Store
from onyx.training.contract.attempt import attempt_dir
from onyx.training.state.events import Events
from tests.jobs.claimed_job import claim_job, make_context
from tests.jobs.store_harness import StoreHarness, wrap_call

CALLS = ("mirror", "report_progress", "report_checkpoint")


class FlakyStore(Store):
    """A store that is unavailable once in each of these calls: before the database has executed it, or after."""

    def __init__(self, store: Store, before: set[str], after: set[str]) -> None:
        super().__init__(store.database.engine)
        for name in CALLS:
            concern = self.events if name == "mirror" else self.attempts
            wrap_call(concern, name, partial(self._call, name, before, after))

    @staticmethod
    async def _call(name: str, before: set[str], after: set[str], call: Callable[[], Awaitable[Any]]) -> Any:
        for executed, calls in ((False, before), (True, after)):
            answer = await call() if executed else None
            if name in calls:
                calls.remove(name)
                raise StoreUnavailableError("away")
        return answer


def numbers(update: int) -> dict[str, Any]:
    return {
        "update": update,
        "epoch": 1,
        "samples": 2 * update,
        "trained_tokens": 100 * update,
        "loss": 1.0,
        "learning_rate": 0.1,
        "tokens_per_second": 50.0,
        "micro_batch": 2,
        "peak_bytes": 1000,
        "gradient_norm": float(update),
    }


@pytest.mark.parametrize(("when", "call"), list(itertools.product(("before", "after"), (*CALLS, "each"))))
async def test_each_event_counts_once(
    harness: StoreHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, call: str
) -> None:
    monkeypatch.setattr(event_mirror, "RETRY_SECONDS", 0.0)
    calls = set(CALLS if call == "each" else (call,))
    store = FlakyStore(harness.store, *((calls, set()) if when == "before" else (set(), calls)))
    context = await make_context(harness, tmp_path, store=store)
    claimed = await claim_job(harness, context)
    mirror = EventMirror(claimed, context, LeaseKeeper(store, claimed.lease))
    folder = attempt_dir(context.settings.job_dir(claimed.job.id), claimed.lease.attempt)
    folder.mkdir(parents=True)
    events = Events(folder / EVENTS)
    for update in (1, 2, 3):
        events.metrics(f"update {update}", numbers(update), last=True)
    events.emit("checkpoint", "saved", {"update": 3})
    events.close()

    await mirror.mirror()
    events = Events(folder / EVENTS)
    events.metrics("update 4", numbers(4), last=True)
    events.close()
    await mirror.mirror_rest()

    job = await harness.store.jobs.get(claimed.job.id)
    assert job is not None
    assert job.progress is not None
    assert (job.progress.update, job.progress.norms, job.progress.mean_gradient_norm) == (4, 4, 2.5)
    assert job.checkpoint_update == 3
    assert (context.tally.events, context.tally.trained_tokens) == (5, 400)
    kinds = [event.kind for event in await harness.store.events.list(job.id) if event.kind in ("metrics", "checkpoint")]
    assert kinds == ["metrics"] * 3 + ["checkpoint", "metrics"]
