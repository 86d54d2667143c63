"""A child process tries a half precision; the result is cached."""

import subprocess
import sys
from pathlib import Path

import pytest

from onyx.training.prepare import cpu_precision_probe


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONYX_HOME", str(tmp_path))


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("pass", "works"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "it was killed by SIGILL"),
        ("raise SystemExit(3)", "it ended with status 3"),
        ("raise RuntimeError('no such kernel')", "it failed: RuntimeError: no such kernel"),
    ],
)
def test_each_way_a_child_can_end(code: str, result: str) -> None:
    assert cpu_precision_probe._try(python(code)) == result


def test_a_child_that_exceeds_the_time_limit_has_failed() -> None:
    assert (
        cpu_precision_probe._try(python("import time; time.sleep(60)"), seconds=0.1) == "it took more than 0.1 seconds"
    )


def test_bf16_is_tried_once_on_this_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is that of a real child, whether bf16 works on this CPU or not, and is cached."""
    child = subprocess.run(
        [sys.executable, "-m", "onyx.training.prepare.cpu_precision_probe", "bf16"], capture_output=True, check=False
    )
    found = cpu_precision_probe.precision_trouble("bf16")
    assert (found is None) == (child.returncode == 0)
    monkeypatch.setattr(cpu_precision_probe, "_try", lambda _: pytest.fail("tried again"))
    assert cpu_precision_probe.precision_trouble("bf16") == found


@pytest.mark.parametrize(
    "code",
    [
        "import time; time.sleep(60)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",  # like the kernel when memory runs out
        "raise MemoryError",
    ],
)
def test_failures_of_a_busy_machine_are_not_cached(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not depend on the CPU, so the next job tries again."""
    try_real = cpu_precision_probe._try
    with monkeypatch.context() as patch:
        patch.setattr(cpu_precision_probe, "_try", lambda _: try_real(python(code), seconds=2))
        assert cpu_precision_probe.precision_trouble("bf16") is not None
    monkeypatch.setattr(cpu_precision_probe, "_try", lambda _: try_real(python("pass")))
    assert cpu_precision_probe.precision_trouble("bf16") is None


def test_another_cpu_is_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cpu_precision_probe, "_try", lambda _: "it was killed by SIGILL")
    assert cpu_precision_probe.precision_trouble("bf16") == "it was killed by SIGILL"
    monkeypatch.setattr(cpu_precision_probe, "_cpu", lambda: "another one")
    monkeypatch.setattr(cpu_precision_probe, "_try", lambda _: "works")
    assert cpu_precision_probe.precision_trouble("bf16") is None
    assert len(list((tmp_path / "cache" / "trials").iterdir())) == 2
