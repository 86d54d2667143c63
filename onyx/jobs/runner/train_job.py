"""One attempt at training, from the ranks' start to the store's record of how it ended."""

import asyncio
import json
import logging
import signal
import time
from collections.abc import Sequence
from contextlib import suppress

from onyx import fs
from onyx.jobs.errors import LostAttempt
from onyx.jobs.files import write_json
from onyx.jobs.job_directory import withdraw_model
from onyx.jobs.launch.launcher import Child, ChildExit
from onyx.jobs.models import ClaimedJob
from onyx.jobs.notify.result_csv import leave_result_file
from onyx.jobs.notify.trackers import Tracking
from onyx.jobs.runner.compose_attempt import build_attempt, rank_work
from onyx.jobs.runner.event_mirror import EventMirror, mirror_former_attempts
from onyx.jobs.runner.lease_keeper import LeaseKeeper, retry_until_available
from onyx.jobs.runner.runner_context import RunnerContext
from onyx.jobs.runner.supervisor import supervise
from onyx.jobs.runner.verdict import Verdict, judge, oom_kills
from onyx.jobs.status import JobStatus, Outcome, StopRequest
from onyx.training.contract.attempt import Attempt, Exit, Failure, attempt_file

logger = logging.getLogger(__name__)

TICK = 0.2
"""Seconds between two looks at an attempt."""


BEAT_SECONDS = 1.0
"""Between two signs of life on the ranks' lifelines."""

BREAK_SECONDS = 5.0
"""How long the other ranks have to notice that one has given up."""


class Training:
    """An attempt while it runs."""

    def __init__(self, claimed: ClaimedJob, context: RunnerContext, keeper: LeaseKeeper) -> None:
        self.claimed = claimed
        self.context = context
        self.keeper = keeper
        self.attempt: Attempt = build_attempt(claimed, context.offered, context.settings)
        self.teller = EventMirror(claimed, context, keeper)
        self.tracking = Tracking(self.attempt, claimed.lease, context)
        self.children: list[Child] = []
        self._ended: list[asyncio.Task[ChildExit]] = []
        self._kills = oom_kills()
        self._began = time.monotonic()
        self._told_to_stop: float | None = None
        self._broken_at: float | None = None
        self._failure: Failure | None = None
        self._config_seq = 0

    async def run(self) -> Verdict:
        """Start the ranks and watch them until all have ended."""
        write_json(attempt_file(self.attempt), self.attempt)
        # On its own: a store that is slow to answer must not look to the ranks like a runner that is gone.
        beating = asyncio.create_task(supervise("the beat for ranks", self._beat))
        try:
            for rank in range(len(self.attempt.shares)):
                child = await self.context.launcher.start(rank_work(self.attempt, rank))
                self.children.append(child)
                self._ended.append(asyncio.create_task(child.wait()))
            self.tracking.start()
            await self._watch()
        finally:
            self.tracking.attempt_over()
            beating.cancel()
            self.send(signal.SIGKILL)
            for child in self.children:
                child.close()
        ends = [task.result() for task in self._ended]
        if self._failure is not None:
            return Verdict(Outcome.FAILED, self._failure.message, failure=self._failure)
        return judge(ends, self.attempt.attempt_dir, oom_killed=self._oom_killed(ends))

    async def _beat(self) -> None:
        while True:
            for child in self.children:
                child.beat()
            await asyncio.sleep(BEAT_SECONDS)

    async def _watch(self) -> None:
        while not all(task.done() for task in self._ended):
            await self.teller.tell()
            self._decide()
            self.keeper.news.clear()
            running = [task for task in self._ended if not task.done()]
            news = asyncio.create_task(self.keeper.news.wait())
            await asyncio.wait({*running, news}, timeout=TICK, return_when=asyncio.FIRST_COMPLETED)
            news.cancel()

    def _decide(self) -> None:
        """What the ranks must be told now, if anything."""
        if self.keeper.lost or self.keeper.request is StopRequest.CANCEL or self._one_died():
            # Nothing that they could still save would be used, or the others wait for one that is gone.
            self.send(signal.SIGKILL)
            return
        self._hand_over_config()
        overdue = self._overdue()
        if overdue is not None and self._failure is None:
            self._failure = overdue
            self.send(signal.SIGKILL)
        elif self.keeper.request is StopRequest.PAUSE or self.context.stopping:
            self._stop()

    def _stop(self) -> None:
        """Save and leave; after the grace time, leave."""
        if self._told_to_stop is None:
            self._told_to_stop = time.monotonic()
            self.send(signal.SIGTERM)
        elif time.monotonic() - self._told_to_stop > self.context.settings.grace_seconds:
            self.send(signal.SIGKILL)

    def _one_died(self) -> bool:
        """Whether a rank ended in a way that leaves the others waiting for it. One that says why is heard out first."""
        ends = [task.result() for task in self._ended if task.done()]
        if any(end.status not in tuple(Exit) for end in ends):
            return True
        if not any(end.status in (Exit.USER_ERROR, Exit.MEMORY) for end in ends):
            return False
        self._broken_at = self._broken_at or time.monotonic()
        return time.monotonic() - self._broken_at > BREAK_SECONDS

    def _overdue(self) -> Failure | None:
        limit = self.claimed.spec.training.time_limit_seconds
        spent = self.claimed.job.running_seconds + time.monotonic() - self._began
        if limit is not None and spent > limit:
            return Failure(
                code="time_limit", message=f"the job ran for its time limit of {limit:g} seconds: give it more"
            )
        silent = time.monotonic() - self.teller.heard_at
        if silent > self.context.settings.stuck_seconds:
            return Failure(code="stuck", message=f"no progress for {silent:.0f} seconds: see the logs of its ranks")
        return None

    def _hand_over_config(self) -> None:
        config = self.keeper.config
        if config is None or config.seq <= self._config_seq:
            return
        self._config_seq = config.seq
        path = self.attempt.attempt_dir / "control.json"
        fs.write_text(path, json.dumps({"seq": config.seq, **config.change.given()}), durable=False)

    def _oom_killed(self, ends: Sequence[ChildExit]) -> bool:
        return any(end.signal == signal.SIGKILL for end in ends) and oom_kills() > self._kills

    def send(self, number: int) -> None:
        for child in self.children:
            child.send(number)


async def train(claimed: ClaimedJob, context: RunnerContext) -> None:
    """From `running` to wherever the attempt leads. Writes nothing once the attempt is somebody else's."""
    with suppress(LostAttempt):
        await mirror_former_attempts(claimed, context)
        async with LeaseKeeper(context.store, claimed.lease) as keeper:
            context.keepers.add(keeper)
            try:
                training = Training(claimed, context, keeper)
                verdict = await training.run()
                await training.teller.tell_all()
            finally:
                context.keepers.discard(keeper)
            if not keeper.lost:
                await _record(claimed, context, keeper, verdict)
                return
    logger.warning(
        "attempt %d at %s is no longer this runner's: its ranks are gone and it writes nothing",
        claimed.lease.attempt,
        claimed.job.id,
        extra={"action": "lost_attempt"},
    )


async def _record(claimed: ClaimedJob, context: RunnerContext, keeper: LeaseKeeper, verdict: Verdict) -> None:
    store, lease = context.store, claimed.lease
    how = f"stopped to {keeper.request}" if keeper.request else str(verdict.outcome)
    logger.info("%s: %s (%s)", claimed.job.id, how, verdict.why, extra={"action": "attempt_ended"})
    if verdict.result is not None:
        result = verdict.result
        await leave_result_file(store, context.settings, claimed.job, result)
        job = await retry_until_available(lambda: store.attempts.report_succeeded(lease, result))
    elif verdict.failure is not None:
        failure = verdict.failure
        job = await retry_until_available(lambda: store.attempts.report_failed(lease, failure))
    elif keeper.request is StopRequest.CANCEL:
        job = await retry_until_available(lambda: store.attempts.report_cancelled(lease))
    elif keeper.request is StopRequest.PAUSE:
        job = await retry_until_available(lambda: store.attempts.report_paused(lease))
    else:
        job = await retry_until_available(lambda: store.attempts.release(lease, verdict.outcome))
    if job.status.terminal and job.status is not JobStatus.SUCCEEDED:
        await withdraw_model(context.settings, job.id)
