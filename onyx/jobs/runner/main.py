"""The runner: claims jobs with their devices, has helper processes prepare them and ranks train them.

It is a process of its own, so that an API process may come and go. `python -m onyx.jobs.runner` starts one. The
file reads from the start of the process to its end: `main`, `serve`, then the claim loop, `Runner.run`.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from onyx import logs
from onyx.jobs.disk_quota import is_low
from onyx.jobs.errors import StoreUnavailableError, UnknownRunnerError, WrongHomeError
from onyx.jobs.files import UMASK
from onyx.jobs.home_marker import check_marker
from onyx.jobs.launch.child import set_process_name
from onyx.jobs.launch.fork_launcher import ForkLauncher
from onyx.jobs.launch.launch_service import LaunchService
from onyx.jobs.launch.launcher import Launcher
from onyx.jobs.launch.subprocess_launcher import SubprocessLauncher
from onyx.jobs.models import ClaimedJob, Lease
from onyx.jobs.notify.webhook_delivery import WebhookDelivery
from onyx.jobs.playground.capacity import CPU
from onyx.jobs.process_identity import this_process
from onyx.jobs.retry import retry_until_available, supervise
from onyx.jobs.runner.autostart import living_clients, runner_log
from onyx.jobs.runner.device_offers import offer_devices
from onyx.jobs.runner.gpu_monitor import GpuMonitor
from onyx.jobs.runner.housekeeping import Housekeeping
from onyx.jobs.runner.prepare_job import prepare
from onyx.jobs.runner.runner_context import RunnerContext
from onyx.jobs.runner.runner_lock import only_one
from onyx.jobs.runner.train_job import train
from onyx.jobs.status import JobStatus
from onyx.jobs.store.store import Store
from onyx.jobs.wakeup import WakeupListener
from onyx.memory.devices.cpu import cpu_cores
from onyx.settings import Settings

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""Between two looks for jobs when no process wakes the runner."""

STRANDED_CHECKS = 10
"""Looks for stranded jobs in the time after which a job counts as stranded."""


def main() -> None:
    """Run in the foreground, until a signal."""
    parser = argparse.ArgumentParser(prog="onyx-runner")
    parser.add_argument(
        "--embedded",
        action="store_true",
        help="exit at once if this home has a runner on this host, and later when no client process is left",
    )
    embedded = parser.parse_args().embedded
    set_process_name("onyx-runner")
    os.umask(UMASK)  # helper processes and ranks inherit it
    settings = Settings()
    with only_one(settings.run_dir, embedded=True) if embedded else contextlib.nullcontext(True) as alone:
        if alone:
            logs.configure(settings, handler=runner_log(settings))
            try:
                asyncio.run(serve(settings, embedded=embedded))
            except WrongHomeError as error:
                raise SystemExit(str(error)) from None


async def serve(settings: Settings, *, embedded: bool = False) -> None:
    """Run a runner until a signal ends it. An embedded one also exits when no client is left and all work is done."""
    store = await retry_until_available(lambda: Store.open(settings.store_url, lease_seconds=settings.lease_seconds))
    launcher = ForkLauncher() if settings.warm_start else SubprocessLauncher()
    try:
        await retry_until_available(lambda: check_marker(store, settings))
        if isinstance(launcher, ForkLauncher):
            warming = asyncio.create_task(launcher.warm())
            warming.add_done_callback(lambda task: task.cancelled() or task.exception())
        context = RunnerContext(
            settings=settings,
            store=store,
            launcher=launcher,
            runner_id=await retry_until_available(lambda: store.runners.register(this_process())),
            offered=await offer_devices(settings),
        )
        async with _listening(settings, launcher) as (wakeup, launch_service):
            runner = Runner(context, wakeup, launch_service, embedded=embedded)
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, runner.stop)
            logger.info("%s offers %s", context.runner_id, [each.here.label for each in context.offered])
            await runner.run()
    finally:
        await launcher.close()
        await store.close()


@contextlib.asynccontextmanager
async def _listening(settings: Settings, launcher: Launcher) -> AsyncIterator[tuple[WakeupListener, LaunchService]]:
    """The two sockets in the run directory on which clients speak to the runner."""
    wakeup = WakeupListener(settings.run_dir)
    launch_service = LaunchService(settings.run_dir, launcher)
    try:
        await launch_service.open()
        yield wakeup, launch_service
    finally:
        launch_service.close()
        wakeup.close()


class Runner:
    """The claim loop of one host, and the tasks beside it."""

    def __init__(
        self, context: RunnerContext, wakeup: WakeupListener, launch_service: LaunchService, *, embedded: bool = False
    ) -> None:
        self._context = context
        self._wakeup = wakeup
        self._launch_service = launch_service
        self._embedded = embedded
        self._tasks: set[asyncio.Task[None]] = set()
        """One per claimed job."""

        self._preparing = 0
        self._replan_at = 0.0
        self._disk_low = False

    async def run(self) -> None:
        """Claim jobs until `stop` is called; then ranks save and their jobs go back to the queue."""
        background = [asyncio.create_task(supervise(name, run)) for name, run in self._background().items()]
        try:
            while not self._context.stopping:
                await self._claim_and_wait()
        finally:
            self.stop()  # also after a defect: ranks save now, and the runner that replaces this one resumes them
            for task in background:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            await self._context.trackers.stop()
            with contextlib.suppress(StoreUnavailableError):
                await self._context.store.runners.retire(self._context.runner_id)

    def stop(self) -> None:
        """On SIGTERM."""
        self._context.stopping = True
        for keeper in self._context.keepers:
            keeper.news.set()
        self._wakeup.wake()

    def _background(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """Tasks that last as long as the runner, by name. One that fails is started again."""
        context = self._context
        return {
            "the runner's heartbeat": self._heartbeat,
            "housekeeping": lambda: Housekeeping(context.settings, context.store).run(),
            "the GPU monitor": lambda: GpuMonitor(context).run(),
            "webhook delivery": lambda: WebhookDelivery(context.store, context.settings).run(),
        }

    async def _claim_and_wait(self) -> None:
        """One round of the claim loop."""
        try:
            await self._claim_all()
        except StoreUnavailableError:
            logger.warning("the store is unavailable: no new jobs until it is back")
        except Exception:  # the next round may succeed, and running jobs must not suffer
            logger.exception("looking for jobs failed", extra={"action": "claim_failed"})
        woken = await self._wakeup.wait(POLL_SECONDS)
        busy = self._tasks or self._context.trackers.tasks
        if self._embedded and not busy and not living_clients(self._context.settings.run_dir):
            logger.info("no client process is left and no job is at hand: stopping")
            self._context.stopping = True
        for keeper in self._context.keepers if woken else ():
            keeper.beat_now()

    async def _claim_all(self) -> None:
        """Claim until nothing waits. If the store does not know this runner, register; the next round claims."""
        try:
            while await self._claim():
                pass
        except UnknownRunnerError:
            self._context.runner_id = await self._context.store.runners.register(this_process())

    async def _claim(self) -> bool:
        """Claim one job to prepare and one to train, if there are any; whether there was one."""
        if self._disk_is_low():
            return False
        waiting = await self._context.store.claims.waiting_phases()
        prepares = JobStatus.VALIDATING in waiting and await self._claim_validating()
        trains = JobStatus.QUEUED in waiting and await self._claim_queued()
        return prepares or trains

    async def _claim_validating(self) -> bool:
        if self._preparing >= cpu_cores():
            return False
        claimed = await self._context.store.claims.claim_validating(self._context.runner_id)
        if claimed is None:
            return False
        self._preparing += 1
        self._start(self._prepare(claimed), claimed.lease)
        return True

    async def _prepare(self, claimed: ClaimedJob) -> None:
        try:
            await prepare(claimed, self._context)
        finally:
            self._preparing -= 1

    async def _claim_queued(self) -> bool:
        context = self._context
        limit = context.settings.running_jobs_per_owner
        claimed = await context.store.claims.claim_queued(context.runner_id, context.lent, max_per_owner=limit)
        if claimed is None:
            return False
        if any(device.name.startswith(CPU) for device in claimed.devices):
            self._launch_service.end_chats()
        self._start(train(claimed, context), claimed.lease)
        return True

    def _disk_is_low(self) -> bool:
        """Whether the disk is nearly full. Jobs wait then: one that starts would fail at its first save."""
        low = is_low(self._context.settings)
        if low and not self._disk_low:
            logger.warning("the disk of ONYX_HOME is nearly full: jobs wait", extra={"action": "disk_low"})
        self._disk_low = low
        return low

    def _start(self, work: Awaitable[None], lease: Lease) -> None:
        with logs.log_ids(job_id=lease.job_id, attempt=lease.attempt):  # the task keeps the ids that it starts with
            task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._finished(done, lease.job_id))

    def _finished(self, task: "asyncio.Future[None]", job_id: str) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("the task of %s failed", job_id, exc_info=task.exception(), extra={"action": "broken"})
        self._wakeup.wake()  # devices are free, or a prepared job waits

    async def _heartbeat(self) -> None:
        """Report to the store that this runner lives, and recover the jobs of dead ones.

        On this host a runner is known to be dead at once; on another host, when its leases expire.
        """
        store, here = self._context.store, this_process()
        while True:
            try:
                record = await store.runners.report_alive(self._context.runner_id)
                for other in await store.runners.list(here.host):
                    if other.id != record.id and other.holder.is_dead(here):
                        await store.runners.replace_dead(self._context.runner_id, other)
                        self._wakeup.wake()
                if record.may_expire and (
                    await store.runners.expire_leases(self._context.runner_id) or await self._replan_stranded()
                ):
                    self._wakeup.wake()
            except StoreUnavailableError:
                logger.warning("the store is unavailable")
            except UnknownRunnerError:
                logger.warning("the store does not know this runner: it registers with its next claim")
            await asyncio.sleep(min(store.lease_seconds / 6, 2.0))

    async def _replan_stranded(self) -> bool:
        """Send jobs whose devices are gone back for a new plan; whether there were any."""
        if time.monotonic() < self._replan_at:
            return False
        context, seconds = self._context, self._context.settings.stranded_seconds
        self._replan_at = time.monotonic() + seconds / STRANDED_CHECKS
        return bool(await context.store.stranded.replan(context.runner_id, context.lent, after=seconds))
