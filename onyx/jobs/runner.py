"""The runner: claims jobs with their devices, has helpers prepare and ranks train them, and watches both.

It is a process of its own, so that an API process may come and go. `python -m onyx.jobs.runner` starts one.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable

from onyx import logs
from onyx.jobs import companions
from onyx.jobs.bench import Bench
from onyx.jobs.child import put_on_name
from onyx.jobs.courier import Courier
from onyx.jobs.errands import Errands
from onyx.jobs.errors import StoreUnavailableError, UnknownRunnerError, WrongHomeError
from onyx.jobs.fresh import FreshLauncher
from onyx.jobs.hold import insist
from onyx.jobs.holder import this_process
from onyx.jobs.housekeeping import Housekeeping
from onyx.jobs.launcher import TemplateLauncher
from onyx.jobs.lock import only_one
from onyx.jobs.marker import check_marker
from onyx.jobs.offer import offer
from onyx.jobs.preparing import prepare
from onyx.jobs.private import UMASK
from onyx.jobs.room import is_low
from onyx.jobs.runner_log import runner_log
from onyx.jobs.spare import CPU
from onyx.jobs.status import JobStatus
from onyx.jobs.store import Store
from onyx.jobs.supervise import supervise
from onyx.jobs.tracking import dismiss
from onyx.jobs.training import train
from onyx.jobs.values import Lease
from onyx.jobs.vitals import Vitals
from onyx.jobs.wake import Alarm
from onyx.memory.cpu import cpu_cores
from onyx.settings import Settings

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""How often a runner looks for work that nobody nudged it about."""


STRAY_LOOKS = 10
"""How often a runner looks for stranded jobs in the time after which a job is one."""


class Runner:
    """Everything one host does for the store."""

    def __init__(self, bench: Bench, alarm: Alarm, errands: Errands, *, embedded: bool = False) -> None:
        self._bench = bench
        self._alarm = alarm
        self._errands = errands
        self._embedded = embedded
        self._tasks: set[asyncio.Task[None]] = set()
        self._preparing = 0
        self._strays_at = 0.0
        self._low = False

    async def run(self) -> None:
        """Until it is told to stop; then ranks save and their jobs go back to the queue."""
        others = [asyncio.create_task(supervise(name, work)) for name, work in self._background().items()]
        try:
            while not self._bench.stopping:
                await self._work_or_wait()
        finally:
            self.stop()  # also after a defect: ranks save now, and the runner that replaces this one goes on
            for task in others:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            await dismiss(self._bench)
            with contextlib.suppress(StoreUnavailableError):
                await self._bench.store.retire_runner(self._bench.runner_id)

    def _background(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What goes on beside claiming. None of it ends while the runner lives: a defect in one starts it again."""
        bench = self._bench
        return {
            "the runner's sign of life": self._stay_alive,
            "housekeeping": lambda: Housekeeping(bench.settings, bench.store).run(),
            "the watch over GPUs": lambda: Vitals(bench).run(),
            "the delivery of webhooks": lambda: Courier(bench.store, bench.settings).run(),
        }

    def stop(self) -> None:
        """On SIGTERM."""
        self._bench.stopping = True
        for hold in self._bench.holds:
            hold.news.set()
        self._alarm.ring()

    async def _work_or_wait(self) -> None:
        try:
            await self._claim_all()
        except StoreUnavailableError:
            logger.warning("the store is away: no new jobs until it is back")
        except Exception:  # the next look may go better, and jobs that run must not suffer
            logger.exception("a look for work broke off", extra={"action": "claim_failed"})
        nudged = await self._alarm.wait(POLL_SECONDS)
        busy = self._tasks or self._bench.trackers
        if self._embedded and not busy and not companions.living(self._bench.settings.run_dir):
            logger.info("whoever wanted this runner is gone and there is nothing to do: leaving")
            self._bench.stopping = True
        for hold in self._bench.holds if nudged else ():
            hold.beat_now()

    async def _claim_all(self) -> None:
        """Until nothing waits. A runner that the store does not know registers, and claims at its next look."""
        try:
            while await self._claim():
                pass
        except UnknownRunnerError:
            self._bench.runner_id = await self._bench.store.register_runner(this_process())

    async def _claim(self) -> bool:
        """Take one job to prepare and one to train, if there are any."""
        bench = self._bench
        if not self._has_room():
            return False
        limit = bench.settings.running_jobs_per_owner
        took = False
        waiting = await bench.store.waiting()
        if JobStatus.VALIDATING in waiting and self._preparing < cpu_cores():
            claimed = await bench.store.claim_validating(bench.runner_id)
            if claimed is not None:
                self._preparing += 1
                self._start(self._prepare_one(prepare(claimed, bench)), claimed.lease)
                took = True
        if JobStatus.QUEUED in waiting:
            claimed = await bench.store.claim_queued(bench.runner_id, bench.lent, max_per_owner=limit)
            if claimed is not None:
                if any(device.name.startswith(CPU) for device in claimed.devices):
                    self._errands.make_room()
                self._start(train(claimed, bench), claimed.lease)
                took = True
        return took

    def _has_room(self) -> bool:
        """Jobs wait while the disk is nearly full: one that starts then would fail at its first save."""
        low = is_low(self._bench.settings)
        if low and not self._low:
            logger.warning("the disk of ONYX_HOME is nearly full: jobs wait", extra={"action": "disk_low"})
        self._low = low
        return not low

    async def _prepare_one(self, work: Awaitable[None]) -> None:
        try:
            await work
        finally:
            self._preparing -= 1

    def _start(self, work: Awaitable[None], lease: Lease) -> None:
        with logs.about(job_id=lease.job_id, attempt=lease.attempt):  # the task keeps the ids that it starts with
            task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._finished(done, lease.job_id))

    def _finished(self, task: "asyncio.Future[None]", job_id: str) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("the work on %s broke off", job_id, exc_info=task.exception(), extra={"action": "broken"})
        self._alarm.ring()  # devices are free, or a prepared job waits

    async def _stay_alive(self) -> None:
        """Be seen, and look after what dead runners left: at once on this host, after a lease elsewhere."""
        store, here = self._bench.store, this_process()
        while True:
            try:
                record = await store.runner_alive(self._bench.runner_id)
                for other in await store.runners(here.host):
                    if other.id != record.id and other.holder.is_dead(here):
                        await store.replace_dead(self._bench.runner_id, other)
                        self._alarm.ring()
                if record.may_expire and (await store.expire(self._bench.runner_id) or await self._replan()):
                    self._alarm.ring()
            except StoreUnavailableError:
                logger.warning("the store is away")
            except UnknownRunnerError:
                logger.warning("the store does not know this runner: it registers with its next claim")
            await asyncio.sleep(min(store.lease_seconds / 6, 2.0))

    async def _replan(self) -> bool:
        """Whether jobs whose devices are gone wait for a new plan now."""
        seconds = self._bench.settings.stranded_seconds
        if time.monotonic() < self._strays_at:
            return False
        self._strays_at = time.monotonic() + seconds / STRAY_LOOKS
        return bool(await self._bench.store.replan_stranded(self._bench.runner_id, self._bench.lent, after=seconds))


async def serve(settings: Settings, *, embedded: bool = False) -> None:
    """Run a runner until a signal ends it; an embedded one also leaves when its companions are gone and all is done."""
    store = await insist(lambda: Store.open(settings.store_url, lease_seconds=settings.lease_seconds))
    launcher = TemplateLauncher() if settings.warm_start else FreshLauncher()
    try:
        await insist(lambda: check_marker(store, settings))
        if isinstance(launcher, TemplateLauncher):
            warming = asyncio.create_task(launcher.warm())
            warming.add_done_callback(lambda task: task.cancelled() or task.exception())
        runner_id = await insist(lambda: store.register_runner(this_process()))
        bench = Bench(
            settings=settings, store=store, launcher=launcher, runner_id=runner_id, offered=await offer(settings)
        )
        alarm = Alarm(settings.run_dir)
        errands = Errands(settings.run_dir, launcher)
        await errands.open()
        runner = Runner(bench, alarm, errands, embedded=embedded)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, runner.stop)
        logger.info("%s offers %s", runner_id, [each.here.label for each in bench.offered])
        try:
            await runner.run()
        finally:
            errands.close()
            alarm.close()
    finally:
        await launcher.close()
        await store.close()


def main() -> None:
    """Run in the foreground, until a signal."""
    parser = argparse.ArgumentParser(prog="onyx-runner")
    parser.add_argument(
        "--embedded",
        action="store_true",
        help="leave at once if this home has a runner here, and when nobody is left who wants one",
    )
    arguments = parser.parse_args()
    put_on_name("onyx-runner")
    os.umask(UMASK)  # for every helper and rank, too
    settings = Settings()
    embedded = arguments.embedded
    with only_one(settings.run_dir, embedded=True) if embedded else contextlib.nullcontext(True) as alone:
        if alone:
            logs.configure(settings, handler=runner_log(settings))
            try:
                asyncio.run(serve(settings, embedded=embedded))
            except WrongHomeError as error:
                raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
