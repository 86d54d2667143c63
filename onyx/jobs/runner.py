"""The runner: claims jobs with their devices, has helpers prepare and ranks train them, and watches both.

It is a process of its own, so that an API process may come and go. `python -m onyx.jobs.runner` starts one.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import fcntl
import logging
import os
import signal
from collections.abc import Awaitable, Iterator
from pathlib import Path

from onyx.jobs.bench import Bench
from onyx.jobs.child import put_on_name
from onyx.jobs.courier import Courier
from onyx.jobs.errands import Errands
from onyx.jobs.errors import StoreUnavailableError, UnknownRunnerError, WrongHomeError
from onyx.jobs.fresh import FreshLauncher
from onyx.jobs.hold import insist
from onyx.jobs.holder import Holder, this_process
from onyx.jobs.launcher import TemplateLauncher
from onyx.jobs.offer import offer
from onyx.jobs.preparing import prepare
from onyx.jobs.spare import CPU
from onyx.jobs.store import Store
from onyx.jobs.training import train
from onyx.jobs.wake import Alarm
from onyx.settings import Settings

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""How often a runner looks for work that nobody nudged it about."""


class Runner:
    """Everything one host does for the store."""

    def __init__(self, bench: Bench, alarm: Alarm, errands: Errands, companion: Holder | None = None) -> None:
        self._bench = bench
        self._alarm = alarm
        self._errands = errands
        self._companion = companion
        self._tasks: set[asyncio.Task[None]] = set()
        self._preparing = 0

    async def run(self) -> None:
        """Until it is told to stop; then ranks save and their jobs go back to the queue."""
        alive = asyncio.create_task(self._stay_alive())
        courier = asyncio.create_task(Courier(self._bench.store, self._bench.settings).run())
        try:
            while not self._bench.stopping:
                await self._work_or_wait()
        finally:
            alive.cancel()
            courier.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            with contextlib.suppress(StoreUnavailableError):
                await self._bench.store.retire_runner(self._bench.runner_id)

    def stop(self) -> None:
        """On SIGTERM."""
        self._bench.stopping = True
        for hold in self._bench.holds:
            hold.news.set()
        self._alarm.ring()

    async def _work_or_wait(self) -> None:
        try:
            while await self._claim():
                pass
        except StoreUnavailableError:
            logger.warning("the store is away: no new jobs until it is back")
        except UnknownRunnerError:
            self._bench.runner_id = await self._bench.store.register_runner(this_process())
        await self._alarm.wait(POLL_SECONDS)
        if self._companion and not self._tasks and self._companion.is_dead(this_process()):
            logger.info("whoever started this runner is gone and there is nothing to do: leaving")
            self._bench.stopping = True
        for hold in self._bench.holds:
            hold.beat_now()

    async def _claim(self) -> bool:
        """Take one job to prepare and one to train, if there are any."""
        bench = self._bench
        limit = bench.settings.running_jobs_per_owner
        took = False
        if self._preparing < (os.cpu_count() or 1):
            claimed = await bench.store.claim_validating(bench.runner_id)
            if claimed is not None:
                self._preparing += 1
                self._start(self._prepare_one(prepare(claimed, bench)), claimed.job.id)
                took = True
        lent = [each.lent for each in bench.offered]
        claimed = await bench.store.claim_queued(bench.runner_id, lent, max_per_owner=limit)
        if claimed is not None:
            if any(device.name.startswith(CPU) for device in claimed.devices):
                self._errands.make_room()
            self._start(train(claimed, bench), claimed.job.id)
            took = True
        return took

    async def _prepare_one(self, work: Awaitable[None]) -> None:
        try:
            await work
        finally:
            self._preparing -= 1

    def _start(self, work: Awaitable[None], job_id: str) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._finished(done, job_id))

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
                if record.may_expire and await store.expire(self._bench.runner_id):
                    self._alarm.ring()
            except (StoreUnavailableError, UnknownRunnerError):
                logger.warning("the store is away")
            await asyncio.sleep(min(store.lease_seconds / 6, 2.0))


async def serve(settings: Settings, companion: Holder | None = None) -> None:
    """Run a runner until a signal ends it, or its companion is gone and nothing is left to do."""
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
        runner = Runner(bench, alarm, errands, companion)
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


async def check_marker(store: Store, settings: Settings) -> None:
    """Refuse to work in a home that is not this store's: its jobs' files are elsewhere."""
    expected = await store.marker()
    marker = settings.home / "marker"
    if not marker.exists() and not (await store.list_jobs(limit=1)).jobs:
        settings.home.mkdir(parents=True, exist_ok=True)
        marker.write_text(expected)  # the first process on a new store: this home is the one
    if not marker.exists() or marker.read_text().strip() != expected:
        raise WrongHomeError(
            f"{settings.home} is not the ONYX_HOME of this store: mount the shared one, or name it in ONYX_HOME"
        )


def lock_path(run_dir: Path) -> Path:
    """The file that the runner of this home on this host keeps locked."""
    return run_dir / f"runner-{this_process().host}.lock"


@contextlib.contextmanager
def only_one(run_dir: Path) -> Iterator[bool]:
    """Whether this is the only runner that was started for its home on this host; the lock lasts as long as it does."""
    run_dir.mkdir(parents=True, exist_ok=True)
    with lock_path(run_dir).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


def main() -> None:
    """Run in the foreground; with --only-one, leave if there is one already."""
    parser = argparse.ArgumentParser(prog="onyx-runner")
    parser.add_argument("--only-one", action="store_true", help="leave at once if this home has a runner here")
    parser.add_argument("--companion", metavar="PID:START", help="leave when this process is gone and all is done")
    arguments = parser.parse_args()
    put_on_name("onyx-runner")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = Settings()
    companion = _companion(arguments.companion)
    with only_one(settings.run_dir) if arguments.only_one else contextlib.nullcontext(True) as alone:
        if alone:
            try:
                asyncio.run(serve(settings, companion))
            except WrongHomeError as error:
                raise SystemExit(str(error)) from None


def _companion(text: str | None) -> Holder | None:
    if text is None:
        return None
    pid, _, started = text.partition(":")
    return dataclasses.replace(this_process(), pid=int(pid), started=int(started))


if __name__ == "__main__":
    main()
