"""W&B trackers: beside an attempt, a process that sends its numbers. No job waits for a tracker or fails with it."""

import asyncio
import importlib.util
import logging
import os
import signal
from contextlib import suppress
from typing import Literal

from onyx.jobs.errors import LostAttempt, StoreUnavailableError
from onyx.jobs.launch.child import WANDB_API_KEY
from onyx.jobs.launch.launcher import Child, ChildExit, ChildSpec, Launcher
from onyx.jobs.models import Lease
from onyx.jobs.notify.tracker_process import ATTEMPT_OVER
from onyx.jobs.store.store import Store
from onyx.settings import Settings
from onyx.training.contract.attempt import Attempt, attempt_file
from onyx.training.contract.child_process import Niceness
from onyx.training.contract.spec import WandbSpec

logger = logging.getLogger(__name__)

TARGET = "onyx.jobs.notify.tracker_process:main"
BEAT_SECONDS = 1.0
STOP_SECONDS = 5.0
"""How long a runner that stops lets trackers finish. The tracker of the next attempt sends the rest."""


class Trackers:
    """The trackers of one runner's jobs."""

    def __init__(self, settings: Settings, store: Store, launcher: Launcher) -> None:
        self.settings = settings
        self.store = store
        self.launcher = launcher
        self.tasks: dict[str, asyncio.Task[None]] = {}
        """By job. A tracker may outlive its attempt; only the runner's end waits for it."""

    def start(self, attempt: Attempt, lease: Lease) -> "Tracker | None":
        """Start a tracker in the background, if the job asks for one."""
        wanted = attempt.spec.wandb
        if wanted is None:
            return None
        tracker = Tracker(attempt, lease, self)
        task = asyncio.create_task(tracker.run(wanted, self.tasks.get(lease.job_id)))
        self.tasks[lease.job_id] = task
        task.add_done_callback(lambda done: self._forget(lease.job_id, done))
        return tracker

    async def stop(self) -> None:
        """Wait a moment for trackers to finish, then end them."""
        if self.tasks:
            _, late = await asyncio.wait(set(self.tasks.values()), timeout=STOP_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _forget(self, job_id: str, task: asyncio.Task[None]) -> None:
        if self.tasks.get(job_id) is task:
            del self.tasks[job_id]


class Tracker:
    """The tracker of one attempt, from the runner's side."""

    def __init__(self, attempt: Attempt, lease: Lease, trackers: Trackers) -> None:
        self._attempt = attempt
        self._lease = lease
        self._settings = trackers.settings
        self._store = trackers.store
        self._launcher = trackers.launcher
        self._over = asyncio.Event()

    def attempt_over(self) -> None:
        """The ranks have ended: the tracker has the grace time to send the rest."""
        self._over.set()

    async def run(self, wanted: WandbSpec, former: asyncio.Task[None] | None) -> None:
        try:
            if former is not None:
                await asyncio.wait({former})  # a W&B run has one writer at a time
            await self._track(wanted)
        except Exception:  # no job fails for this
            logger.exception("the tracker of %s failed", self._lease.job_id, extra={"action": "tracker_failed"})

    async def _track(self, wanted: WandbSpec) -> None:
        mode, obstacle = mode_of(self._settings), why_not(self._settings)
        if obstacle is not None:
            await self._add_event(f"Nothing is sent to W&B: {obstacle}. The job's numbers are in its events", "warn")
            return
        where = f"run {self._lease.job_id} of project {wanted.project}"
        kept = "kept with the job for `wandb sync`, this server sends nothing" if mode == "offline" else "sent there"
        await self._add_event(f"Tracked in W&B as {where}: {kept}", "info")
        child = await self._launcher.start(self._spec(mode))
        try:
            child_exit = await self._watch(child)
        finally:
            child.send(signal.SIGKILL)
            child.close()
        if child_exit.status != 0:
            await self._report_failure(child_exit)

    async def _watch(self, child: Child) -> ChildExit:
        """Wait for its end; kill it when the grace time after the attempt's end is over."""
        ending = asyncio.create_task(child.wait())
        over = asyncio.create_task(self._over.wait())
        clock, deadline = asyncio.get_running_loop().time, float("inf")
        try:
            while not ending.done():
                child.beat()
                if over.done() and deadline == float("inf"):
                    deadline = clock() + self._settings.grace_seconds
                    with suppress(OSError):  # a full disk: then the deadline ends it
                        (self._attempt.attempt_dir / ATTEMPT_OVER).touch()
                if clock() > deadline:
                    child.send(signal.SIGKILL)
                awaited = {ending} if over.done() else {ending, over}
                await asyncio.wait(awaited, timeout=BEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
        return ending.result()

    async def _report_failure(self, child_exit: ChildExit) -> None:
        how = f"status {child_exit.status}" if child_exit.signal is None else f"signal {child_exit.signal}"
        logger.warning(
            "the tracker of %s ended with %s: see tracker.log of attempt %d",
            self._lease.job_id,
            how,
            self._lease.attempt,
            extra={"action": "tracker_failed"},
        )
        await self._add_event(
            f"W&B gets no more numbers of this attempt: its tracker ended with {how}, the job goes on", "warn"
        )

    async def _add_event(self, message: str, level: Literal["info", "warn"]) -> None:
        """Add an event to the job, unless another attempt holds it by now."""
        with suppress(LostAttempt, StoreUnavailableError):
            await self._store.attempts.add_event(self._lease, message, level=level)

    def _spec(self, mode: str) -> ChildSpec:
        folder = self._attempt.job_dir / "wandb"
        key = key_of(self._settings)
        return ChildSpec(
            name="onyx-tracker",
            target=TARGET,
            arguments=(str(attempt_file(self._attempt)), mode),
            log=self._attempt.attempt_dir / "tracker.log",
            environment={
                "CUDA_VISIBLE_DEVICES": "",
                "WANDB_CACHE_DIR": str(folder / "cache"),
                "WANDB_DATA_DIR": str(folder / "data"),
            }
            | ({WANDB_API_KEY: key} if key else {}),
            niceness=Niceness.TRACKER,
        )


def key_of(settings: Settings) -> str | None:
    """The operator's W&B key: from Onyx's setting, or from W&B's own variable."""
    return settings.wandb_api_key.get_secret_value() if settings.wandb_api_key else os.environ.get(WANDB_API_KEY)


def mode_of(settings: Settings) -> str:
    return settings.wandb_mode or ("online" if key_of(settings) else "offline")


def why_not(settings: Settings) -> str | None:
    """What keeps this server from tracking, if anything."""
    if mode_of(settings) == "disabled":
        return "this server does not track jobs"
    if importlib.util.find_spec("wandb") is None:
        return "wandb is not installed on this server"
    return None
