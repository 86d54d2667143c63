"""Trains a claimed job: one attempt, from the start of its ranks to the record in the store of how it ended."""

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
from onyx.jobs.notify.result_csv import write_result_file
from onyx.jobs.notify.trackers import Tracker
from onyx.jobs.retry import retry_until_available, supervise
from onyx.jobs.runner.compose_attempt import build_attempt, rank_spec
from onyx.jobs.runner.event_mirror import EventMirror, mirror_former_attempts
from onyx.jobs.runner.lease_keeper import LeaseKeeper
from onyx.jobs.runner.runner_context import RunnerContext
from onyx.jobs.runner.verdict import Verdict, judge, oom_kills
from onyx.jobs.status import JobStatus, Outcome, StopRequest
from onyx.training.contract.attempt import Attempt, Exit, Failure, attempt_file

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.2
"""Between two looks at an attempt."""

BEAT_SECONDS = 1.0
"""Between two bytes on the ranks' lifelines."""

BREAK_SECONDS = 5.0
"""How long the other ranks have to notice that one has given up."""


class Training:
    """An attempt while it runs."""

    def __init__(self, claimed: ClaimedJob, context: RunnerContext, keeper: LeaseKeeper) -> None:
        self.claimed = claimed
        self.context = context
        self.keeper = keeper
        self.attempt: Attempt = build_attempt(claimed, context.offered, context.settings)
        self.mirror = EventMirror(claimed, context, keeper)
        self.tracker: Tracker | None = None
        self.children: list[Child] = []
        self._exits: list[asyncio.Task[ChildExit]] = []
        self._oom_kills_before = oom_kills()
        self._began = time.monotonic()
        self._stopping_since: float | None = None
        self._broken_since: float | None = None
        self._failure: Failure | None = None
        self._config_seq = 0

    async def run(self) -> Verdict:
        """Start the ranks and watch them until all have ended."""
        write_json(attempt_file(self.attempt), self.attempt)
        # A task of its own: a slow store must not look to the ranks like a dead runner.
        beating = asyncio.create_task(supervise("the lifelines of ranks", self._beat))
        try:
            for rank in range(len(self.attempt.shares)):
                child = await self.context.launcher.start(rank_spec(self.attempt, rank))
                self.children.append(child)
                self._exits.append(asyncio.create_task(child.wait()))
            self.tracker = self.context.trackers.start(self.attempt, self.claimed.lease)
            await self._watch()
        finally:
            if self.tracker is not None:
                self.tracker.attempt_over()
            beating.cancel()
            self.send(signal.SIGKILL)
            for child in self.children:
                child.close()
        exits = [task.result() for task in self._exits]
        if self._failure is not None:
            return Verdict(Outcome.FAILED, self._failure.message, failure=self._failure)
        return judge(exits, self.attempt.attempt_dir, oom_killed=self._oom_killed(exits))

    async def _beat(self) -> None:
        while True:
            for child in self.children:
                child.beat()
            await asyncio.sleep(BEAT_SECONDS)

    async def _watch(self) -> None:
        while not all(task.done() for task in self._exits):
            await self.mirror.mirror()
            self._decide()
            self.keeper.news.clear()
            running = [task for task in self._exits if not task.done()]
            news = asyncio.create_task(self.keeper.news.wait())
            await asyncio.wait({*running, news}, timeout=TICK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            news.cancel()

    def _decide(self) -> None:
        """Signal the ranks, if there is a reason to."""
        if self.keeper.lost or self.keeper.request is StopRequest.CANCEL or self._one_died():
            # What they could still save would not be used, or they wait for a rank that is dead.
            self.send(signal.SIGKILL)
            return
        self._write_config()
        overdue = self._overdue()
        if overdue is not None and self._failure is None:
            self._failure = overdue
            self.send(signal.SIGKILL)
        elif self.keeper.request is StopRequest.PAUSE or self.context.stopping:
            self._stop()

    def _stop(self) -> None:
        """Have the ranks save and exit; kill them after the grace time."""
        if self._stopping_since is None:
            self._stopping_since = time.monotonic()
            self.send(signal.SIGTERM)
        elif time.monotonic() - self._stopping_since > self.context.settings.grace_seconds:
            self.send(signal.SIGKILL)

    def _one_died(self) -> bool:
        """Whether a rank ended so that the others wait for it in vain. A reported error gives them time to notice."""
        statuses = [task.result().status for task in self._exits if task.done()]
        if any(status not in tuple(Exit) for status in statuses):
            return True
        if not any(status in (Exit.USER_ERROR, Exit.MEMORY) for status in statuses):
            return False
        self._broken_since = self._broken_since or time.monotonic()
        return time.monotonic() - self._broken_since > BREAK_SECONDS

    def _overdue(self) -> Failure | None:
        limit = self.claimed.spec.training.time_limit_seconds
        spent = self.claimed.job.running_seconds + time.monotonic() - self._began
        if limit is not None and spent > limit:
            return Failure(
                code="time_limit", message=f"the job ran for its time limit of {limit:g} seconds: give it more"
            )
        silent = time.monotonic() - self.mirror.last_event_at
        if silent > self.context.settings.stuck_seconds:
            return Failure(code="stuck", message=f"no progress for {silent:.0f} seconds: see the logs of its ranks")
        return None

    def _write_config(self) -> None:
        """Pass the owner's change of the config to the ranks, which look for the file."""
        config = self.keeper.config
        if config is None or config.seq <= self._config_seq:
            return
        self._config_seq = config.seq
        path = self.attempt.attempt_dir / "control.json"
        fs.write_text(path, json.dumps({"seq": config.seq, **config.change.given()}), durable=False)

    def _oom_killed(self, exits: Sequence[ChildExit]) -> bool:
        return any(each.signal == signal.SIGKILL for each in exits) and oom_kills() > self._oom_kills_before

    def send(self, number: int) -> None:
        for child in self.children:
            child.send(number)


async def train(claimed: ClaimedJob, context: RunnerContext) -> None:
    """Run one attempt at a job and record how it ended. Writes nothing once another attempt holds the job."""
    with suppress(LostAttempt):
        await mirror_former_attempts(claimed, context)
        async with LeaseKeeper(context.store, claimed.lease) as keeper:
            context.keepers.add(keeper)
            try:
                training = Training(claimed, context, keeper)
                verdict = await training.run()
                await training.mirror.mirror_rest()
            finally:
                context.keepers.discard(keeper)
            if not keeper.lost:
                await _record(claimed, context, keeper, verdict)
                return
    logger.warning(
        "attempt %d at %s lost its lease: its ranks were killed and it writes nothing more",
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
        await write_result_file(store, context.settings, claimed.job, result)
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
