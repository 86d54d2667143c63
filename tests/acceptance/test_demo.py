"""What `make demo` runs, on onyx/tiny, which needs no download."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from onyx.demo import __main__ as demo
from onyx.demo.lesson import PROBES, TINY
from onyx.jobs.runner.runner_lock import locked_by
from tests.planner_cache import share_planner_cache
from tests.waiting import PATIENCE, wait_for


@pytest.mark.slow
def test_the_whole_story(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    share_planner_cache(tmp_path)
    demo.run_demo(TINY, tmp_path)
    assert f"Of {len(PROBES)} facts it knew 0 before and {len(PROBES)} after." in capsys.readouterr().out
    assert locked_by(tmp_path / "run") is None


@pytest.mark.slow
def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    share_planner_cache(tmp_path)
    code = (
        "import sys; from pathlib import Path; from onyx.demo import __main__ as demo, lesson\n"
        f"demo.choose, demo.demo_home = lambda: lesson.TINY, lambda: Path({str(tmp_path)!r})\n"
        "sys.exit(demo.main())"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL) as child:
        wait_for(lambda: locked_by(tmp_path / "run") is not None, "the demo's runner starts")
        family = psutil.Process(child.pid).children(recursive=True)
        child.send_signal(signal.SIGINT)
        assert child.wait(PATIENCE) == 130
    wait_for(lambda: not any(each.is_running() for each in family), "all of them leave")
    assert locked_by(tmp_path / "run") is None
