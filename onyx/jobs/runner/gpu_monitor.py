"""Reads the GPUs of a runner: posts their state in its bulletin and warns the jobs on hot ones."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence

from onyx.jobs.errors import LostAttempt, StoreUnavailableError
from onyx.jobs.models import Lease
from onyx.jobs.process_identity import this_process
from onyx.jobs.runner.bulletin import Bulletin, post, take_down
from onyx.jobs.runner.runner_context import RunnerContext
from onyx.memory.devices.device import Device
from onyx.memory.devices.gpus import list_gpus_async

logger = logging.getLogger(__name__)

CHECK_SECONDS = 15.0
WARN_SECONDS = 60.0
"""Between two warnings to one job."""


class GpuMonitor:
    """Checks the GPUs as long as the runner lives."""

    def __init__(self, context: RunnerContext) -> None:
        self._context = context
        self._has_gpus = any(each.here.kind == "cuda" for each in context.offered)
        self._warned: dict[Lease, float] = {}

    async def run(self) -> None:
        try:
            while True:
                try:
                    await self.check()
                except (StoreUnavailableError, OSError) as error:
                    logger.warning("GPU check failed: %s", error, extra={"action": "gpu_check_failed"})
                except Exception:  # an odd reading must not end the monitor
                    logger.exception("GPU check failed", extra={"action": "gpu_check_failed"})
                await asyncio.sleep(CHECK_SECONDS)
        finally:
            take_down(self._context.settings.run_dir, this_process().host, self._context.runner_id)

    async def check(self) -> None:
        """Read the GPUs, post the bulletin, warn."""
        gpus = await list_gpus_async() if self._has_gpus else []
        bulletin = Bulletin(
            runner_id=self._context.runner_id,
            host=this_process().host,
            time=time.time(),
            events=self._context.tally.events,
            trained_tokens=self._context.tally.trained_tokens,
            gpus=tuple(gpus),
        )
        await asyncio.to_thread(post, self._context.settings.run_dir, bulletin)
        if too_hot := hot(gpus, self._context.settings.hot_celsius):
            await self._warn_jobs(too_hot)

    async def _warn_jobs(self, gpus: Sequence[Device]) -> None:
        lent = await self._context.store.claims.lent_devices(this_process().host)
        now = time.monotonic()
        self._warned = {lease: at for lease, at in self._warned.items() if now - at < WARN_SECONDS}
        for lease in set(lent.values()) - set(self._warned):
            own = [gpu for gpu in gpus if lent.get(gpu.uuid or gpu.label) == lease]
            if own:
                self._warned[lease] = now
                await self._warn_job(lease, own)

    async def _warn_job(self, lease: Lease, gpus: Sequence[Device]) -> None:
        limit = self._context.settings.hot_celsius
        readings = {gpu.label: gpu.temperature for gpu in gpus}
        message = ", ".join(f"{label} is at {degrees:g} °C" for label, degrees in readings.items())
        logger.warning("%s, above %g °C", message, limit, extra=vars(lease) | {"action": "gpu_hot"})
        with contextlib.suppress(LostAttempt):
            await self._context.store.attempts.warn(
                lease, f"{message}, above {limit:g} °C: it may slow down", temperatures=readings, limit=limit
            )


def hot(gpus: Sequence[Device], limit: float) -> list[Device]:
    """The GPUs above the limit. One without a reading does not count."""
    return [gpu for gpu in gpus if gpu.temperature is not None and gpu.temperature > limit]
