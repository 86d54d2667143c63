"""The runner: claims jobs with their devices, has helpers prepare and ranks train them, and watches both.

It is a process of its own, so that an API process may come and go. `python -m onyx.jobs.runner.main` starts one.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler

from onyx import logs
from onyx.jobs.disk_quota import is_low
from onyx.jobs.errors import StoreUnavailableError, UnknownRunnerError, WrongHomeError
from onyx.jobs.files import UMASK
from onyx.jobs.home_marker import check_marker
from onyx.jobs.launch.child import set_process_name
from onyx.jobs.launch.fork_launcher import ForkLauncher
from onyx.jobs.launch.launch_service import LaunchService
from onyx.jobs.launch.subprocess_launcher import SubprocessLauncher
from onyx.jobs.models import Lease
from onyx.jobs.notify.trackers import dismiss
from onyx.jobs.notify.webhook_delivery import WebhookDelivery
from onyx.jobs.playground.capacity import CPU
from onyx.jobs.process_identity import this_process
from onyx.jobs.runner import client_presence as companions
from onyx.jobs.runner.device_offers import offer_devices
from onyx.jobs.runner.gpu_monitor import GpuMonitor
from onyx.jobs.runner.housekeeping import Housekeeping
from onyx.jobs.runner.lease_keeper import retry_until_available
from onyx.jobs.runner.prepare_job import prepare
from onyx.jobs.runner.runner_context import RunnerContext
from onyx.jobs.runner.runner_lock import only_one
from onyx.jobs.runner.supervisor import supervise
from onyx.jobs.runner.train_job import train
from onyx.jobs.status import JobStatus
from onyx.jobs.store.store import Store
from onyx.jobs.wakeup import WakeupListener
from onyx.memory.devices.cpu import cpu_cores
from onyx.settings import Settings

NAME = "runner.log"
_OUTPUTS = (1, 2)


def runner_log(settings: Settings) -> logging.Handler | None:
    """For a process whose standard error is that file; None for one whose output is somebody else's to keep."""
    path = settings.run_dir / NAME
    if not path.exists() or not os.path.samestat(os.fstat(2), path.stat()):
        return None
    return RunnerLog(path, maxBytes=settings.log_bytes, backupCount=settings.log_files)


class RunnerLog(RotatingFileHandler):
    """Log lines by size. What is written past logging, such as the last words of a crash, follows to the new file."""

    def _open(self) -> TextIOWrapper:
        stream = super()._open()
        for output in _OUTPUTS:
            os.dup2(stream.fileno(), output)
        return stream


logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""How often a runner looks for work that nobody nudged it about."""


STRAY_LOOKS = 10
"""How often a runner looks for stranded jobs in the time after which a job is one."""


class Runner:
    """Everything one host does for the store."""

    def __init__(
        self, context: RunnerContext, alarm: WakeupListener, errands: LaunchService, *, embedded: bool = False
    ) -> None:
        self._context = context
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
            while not self._context.stopping:
                await self._work_or_wait()
        finally:
            self.stop()  # also after a defect: ranks save now, and the runner that replaces this one goes on
            for task in others:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            await dismiss(self._context)
            with contextlib.suppress(StoreUnavailableError):
                await self._context.store.runners.retire(self._context.runner_id)

    def _background(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What goes on beside claiming. None of it ends while the runner lives: a defect in one starts it again."""
        context = self._context
        return {
            "the runner's sign of life": self._stay_alive,
            "housekeeping": lambda: Housekeeping(context.settings, context.store).run(),
            "the watch over GPUs": lambda: GpuMonitor(context).run(),
            "the delivery of webhooks": lambda: WebhookDelivery(context.store, context.settings).run(),
        }

    def stop(self) -> None:
        """On SIGTERM."""
        self._context.stopping = True
        for keeper in self._context.keepers:
            keeper.news.set()
        self._alarm.ring()

    async def _work_or_wait(self) -> None:
        try:
            await self._claim_all()
        except StoreUnavailableError:
            logger.warning("the store is away: no new jobs until it is back")
        except Exception:  # the next look may go better, and jobs that run must not suffer
            logger.exception("a look for work broke off", extra={"action": "claim_failed"})
        nudged = await self._alarm.wait(POLL_SECONDS)
        busy = self._tasks or self._context.trackers
        if self._embedded and not busy and not companions.living(self._context.settings.run_dir):
            logger.info("whoever wanted this runner is gone and there is nothing to do: leaving")
            self._context.stopping = True
        for keeper in self._context.keepers if nudged else ():
            keeper.beat_now()

    async def _claim_all(self) -> None:
        """Until nothing waits. A runner that the store does not know registers, and claims at its next look."""
        try:
            while await self._claim():
                pass
        except UnknownRunnerError:
            self._context.runner_id = await self._context.store.runners.register(this_process())

    async def _claim(self) -> bool:
        """Take one job to prepare and one to train, if there are any."""
        context = self._context
        if not self._has_room():
            return False
        limit = context.settings.running_jobs_per_owner
        took = False
        waiting = await context.store.claims.waiting_phases()
        if JobStatus.VALIDATING in waiting and self._preparing < cpu_cores():
            claimed = await context.store.claims.claim_validating(context.runner_id)
            if claimed is not None:
                self._preparing += 1
                self._start(self._prepare_one(prepare(claimed, context)), claimed.lease)
                took = True
        if JobStatus.QUEUED in waiting:
            claimed = await context.store.claims.claim_queued(context.runner_id, context.lent, max_per_owner=limit)
            if claimed is not None:
                if any(device.name.startswith(CPU) for device in claimed.devices):
                    self._errands.make_room()
                self._start(train(claimed, context), claimed.lease)
                took = True
        return took

    def _has_room(self) -> bool:
        """Jobs wait while the disk is nearly full: one that starts then would fail at its first save."""
        low = is_low(self._context.settings)
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
        store, here = self._context.store, this_process()
        while True:
            try:
                record = await store.runners.report_alive(self._context.runner_id)
                for other in await store.runners.list(here.host):
                    if other.id != record.id and other.holder.is_dead(here):
                        await store.runners.replace_dead(self._context.runner_id, other)
                        self._alarm.ring()
                if record.may_expire and (
                    await store.runners.expire_leases(self._context.runner_id) or await self._replan()
                ):
                    self._alarm.ring()
            except StoreUnavailableError:
                logger.warning("the store is away")
            except UnknownRunnerError:
                logger.warning("the store does not know this runner: it registers with its next claim")
            await asyncio.sleep(min(store.lease_seconds / 6, 2.0))

    async def _replan(self) -> bool:
        """Whether jobs whose devices are gone wait for a new plan now."""
        seconds = self._context.settings.stranded_seconds
        if time.monotonic() < self._strays_at:
            return False
        self._strays_at = time.monotonic() + seconds / STRAY_LOOKS
        return bool(
            await self._context.store.stranded.replan(self._context.runner_id, self._context.lent, after=seconds)
        )


async def serve(settings: Settings, *, embedded: bool = False) -> None:
    """Run a runner until a signal ends it; an embedded one also leaves when its companions are gone and all is done."""
    store = await retry_until_available(lambda: Store.open(settings.store_url, lease_seconds=settings.lease_seconds))
    launcher = ForkLauncher() if settings.warm_start else SubprocessLauncher()
    try:
        await retry_until_available(lambda: check_marker(store, settings))
        if isinstance(launcher, ForkLauncher):
            warming = asyncio.create_task(launcher.warm())
            warming.add_done_callback(lambda task: task.cancelled() or task.exception())
        runner_id = await retry_until_available(lambda: store.runners.register(this_process()))
        context = RunnerContext(
            settings=settings,
            store=store,
            launcher=launcher,
            runner_id=runner_id,
            offered=await offer_devices(settings),
        )
        alarm = WakeupListener(settings.run_dir)
        errands = LaunchService(settings.run_dir, launcher)
        await errands.open()
        runner = Runner(context, alarm, errands, embedded=embedded)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, runner.stop)
        logger.info("%s offers %s", runner_id, [each.here.label for each in context.offered])
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
    set_process_name("onyx-runner")
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
