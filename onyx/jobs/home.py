"""A place where Onyx runs: its store, and a runner beside it that is there when it is needed."""

import asyncio
import fcntl
import logging
import os
import sys
from dataclasses import dataclass

from onyx.jobs.detached import spawn_detached
from onyx.jobs.errors import JobNotFoundError
from onyx.jobs.holder import this_process
from onyx.jobs.ids import JobKind
from onyx.jobs.runner import check_marker, lock_path
from onyx.jobs.store import Store
from onyx.jobs.values import ConfigChange, Job
from onyx.jobs.wake import nudge
from onyx.settings import Settings
from onyx.training.spec import JobSpec

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
"""How often somebody who waits for a job looks at it."""


@dataclass
class Home:
    """What the API and the library do with jobs. Opening it imports no torch."""

    settings: Settings
    store: Store

    @classmethod
    async def open(cls, settings: Settings | None = None) -> "Home":
        """Make the directories and tables that are not there yet."""
        settings = settings or Settings()
        settings.run_dir.mkdir(parents=True, exist_ok=True)
        store = await Store.open(settings.store_url, lease_seconds=settings.lease_seconds)
        await check_marker(store, settings)
        return cls(settings, store)

    async def close(self) -> None:
        """Let go of the store. The runner goes on while it has work."""
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
        """Make a job and see to it that somebody works on it."""
        most = self.settings.open_jobs_per_owner
        job = await self.store.create(
            spec, owner, kind, idempotency_key=idempotency_key, max_open=most, again_within=again_within
        )
        await self.ensure_runner()
        nudge(self.settings.run_dir)
        return job

    async def wait(self, job_id: str, seconds: float | None = None) -> Job:
        """The job when it has ended, or after `seconds` as it is then."""
        deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
        while True:
            job = await self.store.get(job_id)
            if job is None:
                raise JobNotFoundError(job_id)
            late = deadline is not None and asyncio.get_running_loop().time() >= deadline
            if job.status.terminal or late:
                return job
            await asyncio.sleep(LOOK_SECONDS)

    async def cancel(self, job_id: str, owner: str | None = None) -> Job:
        return self._nudged(await self.store.request_cancel(job_id, owner))

    async def pause(self, job_id: str, owner: str | None = None) -> Job:
        return self._nudged(await self.store.request_pause(job_id, owner))

    async def resume(self, job_id: str, owner: str | None = None) -> Job:
        job = await self.store.resume(job_id, owner)
        await self.ensure_runner()
        return self._nudged(job)

    async def reconfigure(self, job_id: str, change: ConfigChange, owner: str | None = None) -> Job:
        return self._nudged(await self.store.request_config(job_id, change, owner))

    def _nudged(self, job: Job) -> Job:
        nudge(self.settings.run_dir)
        return job

    async def ensure_runner(self) -> None:
        """Start a runner for this home on this host, unless one holds the lock. It outlives this process."""
        if not self.settings.embedded_runner or self.runner_is_there():
            return
        here = this_process()
        command = (sys.executable, "-m", "onyx.jobs.runner", "--only-one", f"--companion={here.pid}:{here.started}")
        spawn_detached(command, os.environ | self.settings.environment(), self.settings.run_dir / "runner.log")

    def runner_is_there(self) -> bool:
        """Whether a runner that was started for this home lives on this host."""
        try:
            with lock_path(self.settings.run_dir).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False
