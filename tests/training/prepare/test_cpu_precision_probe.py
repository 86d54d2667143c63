"""A precision that a CPU may die of: tried in a child, remembered, and told."""

import subprocess
import sys
from pathlib import Path

import pytest

from onyx.training.prepare import cpu_precision_probe as half


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONYX_HOME", str(tmp_path))


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("pass", "works"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "it was killed by SIGILL"),
        ("raise SystemExit(3)", "it ended with status 3"),
        ("raise RuntimeError('no such kernel')", "it failed: RuntimeError: no such kernel"),
    ],
)
def test_every_end_of_a_child_is_told(code: str, told: str) -> None:
    assert half._try(python(code)) == told


def test_a_child_that_never_ends_does_not_work() -> None:
    assert half._try(python("import time; time.sleep(60)"), seconds=0.1) == "it took more than 0.1 seconds"


def test_bf16_for_real_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this CPU makes of it: the answer is that of a child that does the step, and is remembered."""
    child = subprocess.run(
        [sys.executable, "-m", "onyx.training.prepare.cpu_precision_probe", "bf16"], capture_output=True, check=False
    )
    found = half.precision_trouble("bf16")
    assert (found is None) == (child.returncode == 0)
    monkeypatch.setattr(half, "_try", lambda _: pytest.fail("tried again"))
    assert half.precision_trouble("bf16") == found


@pytest.mark.parametrize(
    "code",
    [
        "import time; time.sleep(60)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",  # as the kernel does where memory runs out
        "raise MemoryError",
    ],
)
def test_what_a_busy_machine_did_to_a_trial_is_not_kept(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says nothing of the CPU: the next job tries again."""
    trial = half._try
    with monkeypatch.context() as patch:
        patch.setattr(half, "_try", lambda _: trial(python(code), seconds=2))
        assert half.precision_trouble("bf16") is not None
    monkeypatch.setattr(half, "_try", lambda _: trial(python("pass")))
    assert half.precision_trouble("bf16") is None


def test_another_cpu_is_tried_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(half, "_try", lambda _: "it was killed by SIGILL")
    assert half.precision_trouble("bf16") == "it was killed by SIGILL"
    monkeypatch.setattr(half, "_cpu", lambda: "another one")
    monkeypatch.setattr(half, "_try", lambda _: "works")
    assert half.precision_trouble("bf16") is None
    assert len(list((tmp_path / "cache" / "trials").iterdir())) == 2
