"""A runner's look at its cards: what they read goes into its bulletin, and a hot one is worth a warning."""

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

LOOK_SECONDS = 15.0
WARN_SECONDS = 60.0
"""A job is warned no more often."""


class GpuMonitor:
    """Looks while the runner lives."""

    def __init__(self, context: RunnerContext) -> None:
        self._context = context
        self._has_gpus = any(each.here.kind == "cuda" for each in context.offered)
        self._warned: dict[Lease, float] = {}

    async def run(self) -> None:
        try:
            while True:
                try:
                    await self.look()
                except (StoreUnavailableError, OSError) as error:
                    logger.warning("the vitals cannot be told: %s", error, extra={"action": "vitals_failed"})
                except Exception:  # a card that reads strangely must not end the watch
                    logger.exception("a look at the vitals broke off", extra={"action": "vitals_failed"})
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            take_down(self._context.settings.run_dir, this_process().host, self._context.runner_id)

    async def look(self) -> None:
        """Once: read the cards, post the bulletin, warn."""
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
            await self._warn(too_hot)

    async def _warn(self, gpus: Sequence[Device]) -> None:
        lent = await self._context.store.claims.lent_devices(this_process().host)
        now = time.monotonic()
        self._warned = {lease: at for lease, at in self._warned.items() if now - at < WARN_SECONDS}
        for lease in set(lent.values()) - set(self._warned):
            its = [gpu for gpu in gpus if lent.get(gpu.uuid or gpu.label) == lease]
            if its:
                self._warned[lease] = now
                await self._tell(lease, its)

    async def _tell(self, lease: Lease, gpus: Sequence[Device]) -> None:
        limit = self._context.settings.hot_celsius
        readings = {gpu.label: gpu.temperature for gpu in gpus}
        words = ", ".join(f"{label} is at {degrees:g} °C" for label, degrees in readings.items())
        logger.warning("%s, above %g °C", words, limit, extra=vars(lease) | {"action": "gpu_hot"})
        with contextlib.suppress(LostAttempt):
            await self._context.store.attempts.warn(
                lease, f"{words}, above {limit:g} °C: it may slow down", temperatures=readings, limit=limit
            )


def hot(gpus: Sequence[Device], limit: float) -> list[Device]:
    """The cards that are above the limit. One that does not say is not."""
    return [gpu for gpu in gpus if gpu.temperature is not None and gpu.temperature > limit]
