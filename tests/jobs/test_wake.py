import asyncio
import time
from pathlib import Path

from onyx.jobs.wake import Alarm, nudge


def test_a_nudge_wakes_at_once(tmp_path: Path) -> None:
    run_dir = tmp_path / ("deep" * 30) / "run"  # longer than a socket's address may be

    async def run() -> float:
        alarm = Alarm(run_dir)
        try:
            started = time.perf_counter()
            asyncio.get_running_loop().call_later(0.05, nudge, run_dir)
            assert await alarm.wait(30)
            return time.perf_counter() - started
        finally:
            alarm.close()

    assert asyncio.run(run()) < 10


def test_a_nudge_before_the_wait_counts(tmp_path: Path) -> None:
    async def run() -> None:
        alarm = Alarm(tmp_path)
        for _ in range(100):
            nudge(tmp_path)
        await asyncio.wait_for(alarm.wait(30), 10)
        alarm.ring()
        await asyncio.wait_for(alarm.wait(30), 10)
        alarm.close()

    asyncio.run(run())
    assert not (tmp_path / "wake").exists()


def test_without_a_runner_a_nudge_is_nothing(tmp_path: Path) -> None:
    nudge(tmp_path)
    nudge(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


def test_silence_ends_the_wait(tmp_path: Path) -> None:
    async def run() -> None:
        alarm = Alarm(tmp_path)
        assert not await alarm.wait(0.01)
        alarm.close()

    asyncio.run(run())
    assert not (tmp_path / "wake").exists()
