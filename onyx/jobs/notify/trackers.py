"""Beside an attempt: the process that tells W&B its numbers. Whatever becomes of it, no job waits for it or fails."""

import asyncio
import importlib.util
import logging
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from onyx.jobs.errors import LostAttempt, StoreUnavailableError
from onyx.jobs.launch.child import WANDB_API_KEY
from onyx.jobs.launch.launcher import Child, ChildExit, ChildSpec
from onyx.jobs.models import Lease
from onyx.jobs.notify.tracker_process import OVER
from onyx.settings import Settings
from onyx.training.contract.attempt import Attempt, attempt_file
from onyx.training.contract.child_process import Niceness
from onyx.training.contract.spec import WandbSpec

if TYPE_CHECKING:
    from onyx.jobs.runner.runner_context import RunnerContext

logger = logging.getLogger(__name__)

TARGET = "onyx.jobs.notify.tracker_process:main"
BEAT_SECONDS = 1.0
LEAVE_SECONDS = 5.0
"""How long a runner that was told to stop lets trackers finish. What they did not tell, the next attempt's does."""


class Tracking:
    """The tracker of one attempt, from the runner's side."""

    def __init__(self, attempt: Attempt, lease: Lease, context: "RunnerContext") -> None:
        self._attempt = attempt
        self._lease = lease
        self._context = context
        self._over = asyncio.Event()

    def start(self) -> None:
        """In the background, if the job asks for it."""
        asked = self._attempt.spec.wandb
        if asked is None:
            return
        trackers, job_id = self._context.trackers, self._lease.job_id
        task = asyncio.create_task(self._run(asked, trackers.get(job_id)))
        trackers[job_id] = task
        task.add_done_callback(lambda done: trackers.pop(job_id) if trackers.get(job_id) is done else None)

    def attempt_over(self) -> None:
        """The ranks have ended: the tracker has the grace time for the rest."""
        self._over.set()

    async def _run(self, asked: WandbSpec, former: asyncio.Task[None] | None) -> None:
        try:
            if former is not None:
                await asyncio.wait({former})  # one run of W&B has one who writes it
            await self._track(asked)
        except Exception:  # no job fails for this
            logger.exception("the tracker of %s broke off", self._lease.job_id, extra={"action": "tracker_failed"})

    async def _track(self, asked: WandbSpec) -> None:
        mode, lack = mode_of(self._context.settings), why_not(self._context.settings)
        if lack is not None:
            await self._say(f"Nothing is sent to W&B: {lack}. The job's numbers are in its events", "warn")
            return
        where = f"run {self._lease.job_id} of project {asked.project}"
        kept = "kept with the job for `wandb sync`, this server sends nothing" if mode == "offline" else "sent there"
        await self._say(f"Tracked in W&B as {where}: {kept}", "info")
        child = await self._context.launcher.start(self._work(mode))
        try:
            ended = await self._watch(child)
        finally:
            child.send(signal.SIGKILL)
            child.close()
        if ended.status != 0:
            await self._tell_failure(ended)

    async def _watch(self, child: Child) -> ChildExit:
        """Until it ends; some time after its attempt it must."""
        ending = asyncio.create_task(child.wait())
        over = asyncio.create_task(self._over.wait())
        clock, deadline = asyncio.get_running_loop().time, float("inf")
        try:
            while not ending.done():
                child.beat()
                if over.done() and deadline == float("inf"):
                    deadline = clock() + self._context.settings.grace_seconds
                    with suppress(OSError):  # a full disk: then the deadline ends it
                        (self._attempt.attempt_dir / OVER).touch()
                if clock() > deadline:
                    child.send(signal.SIGKILL)
                awaited = {ending} if over.done() else {ending, over}
                await asyncio.wait(awaited, timeout=BEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
        return ending.result()

    async def _tell_failure(self, ended: ChildExit) -> None:
        how = f"status {ended.status}" if ended.signal is None else f"signal {ended.signal}"
        logger.warning(
            "the tracker of %s ended with %s: see tracker.log of attempt %d",
            self._lease.job_id,
            how,
            self._lease.attempt,
            extra={"action": "tracker_failed"},
        )
        await self._say(f"W&B is no longer told of this attempt: its tracker ended with {how}, the job goes on", "warn")

    async def _say(self, message: str, level: Literal["info", "warn"]) -> None:
        """An event, if the attempt is still ours to speak of."""
        with suppress(LostAttempt, StoreUnavailableError):
            await self._context.store.attempts.add_event(self._lease, message, level=level)

    def _work(self, mode: str) -> ChildSpec:
        folder = self._attempt.job_dir / "wandb"
        key = key_of(self._context.settings)
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
    """The operator's key, or what W&B itself would look for."""
    return settings.wandb_api_key.get_secret_value() if settings.wandb_api_key else os.environ.get(WANDB_API_KEY)


def mode_of(settings: Settings) -> str:
    return settings.wandb_mode or ("online" if key_of(settings) else "offline")


def why_not(settings: Settings) -> str | None:
    """What keeps this server from tracking."""
    if mode_of(settings) == "disabled":
        return "this server does not track jobs"
    if importlib.util.find_spec("wandb") is None:
        return "wandb is not installed on this server"
    return None


async def dismiss(context: "RunnerContext") -> None:
    """The runner leaves: trackers finish soon, or not at all."""
    if context.trackers:
        _, late = await asyncio.wait(set(context.trackers.values()), timeout=LEAVE_SECONDS)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
