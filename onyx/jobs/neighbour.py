"""The runner beside an API process, as that process stops it: told once, and waited for."""

import asyncio
import os
import signal
from pathlib import Path

from onyx.jobs.lock import locked_by


class Neighbour:
    """A process that can be told to stop. It is named by a descriptor: a pid could be somebody else's by now."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def stop(self) -> None:
        """Ranks save, their jobs go back to the queue, and it leaves."""
        signal.pidfd_send_signal(self._descriptor, signal.SIGTERM)

    async def gone(self, seconds: float) -> bool:
        """Whether it has ended within this time."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(self._descriptor, ended.set)
        try:
            await asyncio.wait_for(ended.wait(), seconds)
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(self._descriptor)
        return True

    def close(self) -> None:
        os.close(self._descriptor)


def find_neighbour(run_dir: Path, starting: int | None = None) -> Neighbour | None:
    """The embedded runner of this home, or the child `starting` that has not got as far as the lock.

    A runner that is a unit of its own is not its neighbour's to stop.
    """
    runner = locked_by(run_dir)
    if runner is not None and not runner.embedded:
        return None
    pid = runner.pid if runner is not None else starting
    try:
        return Neighbour(pid) if pid is not None else None
    except ProcessLookupError:
        return None
