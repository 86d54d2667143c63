"""Starts children in fresh interpreters: always safe, and seconds slower than a fork."""

import asyncio
import sys
from pathlib import Path
from typing import BinaryIO

from onyx.jobs.launch.child import inherited
from onyx.jobs.launch.launcher import ChildExit, ChildSpec
from onyx.jobs.launch.lifeline import Lifeline
from onyx.training.contract.child_process import LIFELINE


class SubprocessChild:
    """A child of this process."""

    def __init__(self, process: asyncio.subprocess.Process, lifeline: Lifeline) -> None:
        self.pid = process.pid
        self._process = process
        self._lifeline = lifeline

    async def wait(self) -> ChildExit:
        return exit_of(await self._process.wait())

    def send(self, signal: int) -> None:
        if self._process.returncode is None:
            self._process.send_signal(signal)

    def beat(self) -> None:
        self._lifeline.beat()

    def close(self) -> None:
        self._lifeline.close()


class SubprocessLauncher:
    """Starts `python -m onyx.jobs.launch.child` for each child."""

    async def start(self, spec: ChildSpec) -> SubprocessChild:
        lifeline = Lifeline()
        environment = inherited() | dict(spec.environment) | {LIFELINE: str(lifeline.reader)}
        try:
            with open_log(spec.log) as log:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "onyx.jobs.launch.child",
                    spec.name,
                    str(spec.niceness),
                    spec.target,
                    *spec.arguments,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    pass_fds=(lifeline.reader,),
                )
        except BaseException:
            lifeline.close()
            raise
        lifeline.handed_over()
        return SubprocessChild(process, lifeline)

    async def close(self) -> None:
        """There is nothing to close."""


def open_log(path: Path) -> BinaryIO:
    """Open a log to append to; its directory is made if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("ab")


def exit_of(returncode: int) -> ChildExit:
    """From a return code as subprocess gives it: a negative one is a signal."""
    return ChildExit(None, -returncode) if returncode < 0 else ChildExit(returncode)
