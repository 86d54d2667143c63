import asyncio
import signal
import subprocess
import sys
from pathlib import Path

from onyx.jobs.runner.autostart import RunnerProcess, find_runner
from onyx.jobs.runner.runner_lock import only_one


def test_told_once_and_waited_for() -> None:
    async def story() -> None:
        neighbour = RunnerProcess(child.pid)
        assert not await neighbour.gone(0.01)
        neighbour.stop()
        assert await neighbour.gone(600)
        neighbour.close()

    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as child:
        asyncio.run(story())
    assert child.returncode == -signal.SIGTERM


def test_which_runner_may_be_stopped(tmp_path: Path) -> None:
    assert find_runner(tmp_path) is None
    with only_one(tmp_path, embedded=False):
        assert find_runner(tmp_path) is None, "a unit of its own"
    with only_one(tmp_path, embedded=True):
        found = find_runner(tmp_path)
        assert found is not None
        found.close()
