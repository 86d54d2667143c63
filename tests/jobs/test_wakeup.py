import asyncio
from pathlib import Path

from onyx.jobs.wakeup import WakeupListener, wake_runner
from tests.waiting import PATIENCE


def test_a_client_wakes_the_runner_at_once(tmp_path: Path) -> None:
    run_dir = tmp_path / ("deep" * 30) / "run"  # longer than a socket's address may be

    async def run() -> None:
        listener = WakeupListener(run_dir)
        try:
            asyncio.get_running_loop().call_soon(wake_runner, run_dir)  # as soon as the listener waits
            assert await listener.wait(PATIENCE), "it waited until the time was over"
        finally:
            listener.close()

    asyncio.run(run())


def test_a_wakeup_before_the_wait_counts(tmp_path: Path) -> None:
    async def run() -> None:
        listener = WakeupListener(tmp_path)
        for _ in range(100):
            wake_runner(tmp_path)
        assert await listener.wait(PATIENCE)
        listener.wake()
        assert await listener.wait(PATIENCE)
        listener.close()

    asyncio.run(run())
    assert not (tmp_path / "wake").exists()


def test_without_a_runner_a_wakeup_does_nothing(tmp_path: Path) -> None:
    wake_runner(tmp_path)
    wake_runner(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


def test_the_wait_ends_after_its_time(tmp_path: Path) -> None:
    async def run() -> None:
        listener = WakeupListener(tmp_path)
        assert not await listener.wait(0.01)
        listener.close()

    asyncio.run(run())
    assert not (tmp_path / "wake").exists()
