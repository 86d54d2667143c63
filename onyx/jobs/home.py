"""One ONYX_HOME: its store, and the runner that is started beside this process when a job needs it."""

import asyncio
import logging
import math
from dataclasses import dataclass, field

from onyx.jobs.disk_quota import DiskQuota
from onyx.jobs.errors import JobNotFoundError
from onyx.jobs.files import close_directory, private_directory, private_file
from onyx.jobs.home_marker import check_marker
from onyx.jobs.ids import JobKind
from onyx.jobs.models import ConfigChange, Job
from onyx.jobs.runner.autostart import RunnerProcess, find_runner, other_clients, start_runner, starting
from onyx.jobs.runner.runner_lock import is_locked
from onyx.jobs.store.store import Store
from onyx.jobs.wakeup import wake_runner
from onyx.settings import Settings
from onyx.training.contract.spec import JobSpec

logger = logging.getLogger(__name__)

POLL_SECONDS = (0.05, 1.0)
"""Shortest and longest time between two polls for a job."""

POLL_LATENESS = 1 / 20
"""Between them: this part of the time waited so far. Each poll takes time from ranks on the same cores."""

RUNNER_CHECK_SECONDS = 2.0
"""Time between two checks of a waiting process that the runner is alive."""


@dataclass
class Home:
    """What the API and the library do with jobs. Opening it imports no torch."""

    settings: Settings
    store: Store
    stopping: bool = field(default=False, init=False)
    """This process is about to end and starts no runner."""

    wants_runner: bool = field(default=False, init=False)
    """This process has asked for a runner: while it waits for a job, it replaces a runner that has died."""

    disk_quota: DiskQuota = field(init=False)
    """Limits on the disk, checked before a job is made or a file is stored."""

    def __post_init__(self) -> None:
        self.disk_quota = DiskQuota(self.settings, self.store)

    @classmethod
    async def open(cls, settings: Settings | None = None) -> "Home":
        """Open the store, and create missing directories and tables."""
        settings = settings or Settings()
        private_directory(settings.home)
        close_directory(settings.run_dir)
        if settings.database_url is None:
            private_file(settings.home / "onyx.db")
        store = await Store.open(settings.store_url, lease_seconds=settings.lease_seconds)
        try:
            await check_marker(store, settings)
        except BaseException:
            await store.close()
            raise
        return cls(settings, store)

    async def close(self) -> None:
        """Close the store. The runner goes on while it has work."""
        await self.store.close()

    async def submit(
        self,
        spec: JobSpec,
        owner: str,
        kind: JobKind,
        *,
        idempotency_key: str | None = None,
        again_within: float | None = None,
    ) -> Job:
        """Create a job, and make sure that a runner works on it."""
        job = await self.store.jobs.create(
            spec,
            owner,
            kind,
            idempotency_key=idempotency_key,
            max_open=self.settings.open_jobs_per_owner,
            refusal=await self.disk_quota.refusal(owner),
            again_within=again_within,
        )
        await self.ensure_runner()
        wake_runner(self.settings.run_dir)
        return job

    async def wait(self, job_id: str, seconds: float | None = None) -> Job:
        """The job when it has ended, or after `seconds`. If this process asked for a runner, it replaces a dead one."""
        clock = asyncio.get_running_loop().time
        began = checked = clock()
        while not (await self.store.jobs.status(job_id)).terminal:
            waited = clock() - began
            left = math.inf if seconds is None else seconds - waited
            if left <= 0:
                break
            if self.wants_runner and clock() - checked >= RUNNER_CHECK_SECONDS:
                await self.replace_runner()
                checked = clock()
            shortest, longest = POLL_SECONDS
            await asyncio.sleep(min(left, longest, max(shortest, waited * POLL_LATENESS)))
        job = await self.store.jobs.get(job_id)
        if job is None:  # deleted since the last poll
            raise JobNotFoundError(job_id)
        return job

    async def cancel(self, job_id: str, owner: str | None = None) -> Job:
        return self._wake_runner_for(await self.store.control.cancel(job_id, owner))

    async def pause(self, job_id: str, owner: str | None = None) -> Job:
        return self._wake_runner_for(await self.store.control.pause(job_id, owner))

    async def resume(self, job_id: str, owner: str | None = None) -> Job:
        job = await self.store.control.resume(job_id, owner)
        await self.ensure_runner()
        return self._wake_runner_for(job)

    async def reconfigure(self, job_id: str, change: ConfigChange, owner: str | None = None) -> Job:
        return self._wake_runner_for(await self.store.control.change_config(job_id, change, owner))

    def _wake_runner_for(self, job: Job) -> Job:
        wake_runner(self.settings.run_dir)
        return job

    async def ensure_runner(self) -> None:
        """Start a runner for this home on this host, unless one holds the lock. It outlives this process."""
        self.wants_runner = True
        if self.settings.embedded_runner and not self.stopping:
            # In a thread: reading a lock can block while other processes sync the file system.
            await asyncio.to_thread(start_runner, self.settings)

    async def replace_runner(self) -> None:
        """Start a runner if none is alive. Where that fails, the next check tries again."""
        try:
            await self.ensure_runner()
        except OSError:
            logger.exception("no runner could be started", extra={"action": "runner_failed"})

    def runner_is_alive(self) -> bool:
        """Whether a runner of this home is alive on this host."""
        return is_locked(self.settings.run_dir)

    def stop_runner(self) -> RunnerProcess | None:
        """Start no runner any more, and stop the one beside this process unless another client uses it."""
        self.stopping = True
        run_dir = self.settings.run_dir
        if not self.settings.embedded_runner or other_clients(run_dir):
            return None
        found = find_runner(run_dir, starting(run_dir))
        if found is not None:
            found.stop()
        return found
