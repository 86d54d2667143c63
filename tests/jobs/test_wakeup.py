import asyncio
from pathlib import Path

from onyx.jobs.wakeup import WakeupListener, wake_runner
from tests.waiting import PATIENCE


def test_a_nudge_wakes_at_once(tmp_path: Path) -> None:
    run_dir = tmp_path / ("deep" * 30) / "run"  # longer than a socket's address may be

    async def run() -> None:
        alarm = WakeupListener(run_dir)
        try:
            asyncio.get_running_loop().call_soon(wake_runner, run_dir)  # as soon as the alarm waits
            assert await alarm.wait(PATIENCE), "it waited until the time was over"
        finally:
            alarm.close()

    asyncio.run(run())


def test_a_nudge_before_the_wait_counts(tmp_path: Path) -> None:
    async def run() -> None:
        alarm = WakeupListener(tmp_path)
        for _ in range(100):
            wake_runner(tmp_path)
        assert await alarm.wait(PATIENCE)
        alarm.ring()
        assert await alarm.wait(PATIENCE)
        alarm.close()

    asyncio.run(run())
    assert not (tmp_path / "wake").exists()


def test_without_a_runner_a_nudge_is_nothing(tmp_path: Path) -> None:
    wake_runner(tmp_path)
    wake_runner(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


def test_silence_ends_the_wait(tmp_path: Path) -> None:
    async def run() -> None:
        alarm = WakeupListener(tmp_path)
        assert not await alarm.wait(0.01)
        alarm.close()

    asyncio.run(run())
    assert not (tmp_path / "wake").exists()
