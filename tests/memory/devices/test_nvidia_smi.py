"""The cards that nvidia-smi names, on a host without NVML."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from onyx.memory.devices.device import Device
from onyx.memory.devices.nvidia_smi import smi_gpus
from tests.memory.devices.nvidia_smi_output import FOUR, MB, NOT_AVAILABLE, ONE, UUIDS, Install, list_gpus, printing
from tests.waiting import wait_for


def test_one_gpu(install: Install) -> None:
    install(printing(ONE))
    assert list_gpus() == [
        Device(
            kind="cuda",
            index=0,
            name="Tesla T4",
            uuid="GPU-5f3a1c00-0000-0000-0000-000000000000",
            memory_total=15360 * MB,
            memory_free=14330 * MB,
            utilization=37,
            temperature=41,
            power_draw=27.53,
        )
    ]


def test_four_gpus_in_the_order_of_their_index(install: Install) -> None:
    install(printing("\n".join(reversed(FOUR.splitlines()))))
    gpus = list_gpus()
    assert [gpu.label for gpu in gpus] == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]
    assert [gpu.uuid for gpu in gpus] == UUIDS
    assert [gpu.power_draw for gpu in gpus] == [50.25, 51.25, 52.25, 53.25]


def test_readings_that_are_not_available_are_none(install: Install) -> None:
    install(printing(NOT_AVAILABLE))
    (gpu,) = list_gpus()
    assert (gpu.memory_total, gpu.memory_free) == (40960 * MB, 40533 * MB)
    assert (gpu.utilization, gpu.temperature, gpu.power_draw) == (None, None, None)


def test_output_recorded_for_gputil_has_no_power(install: Install) -> None:
    install(printing(ONE.rpartition(", ")[0]))
    (gpu,) = list_gpus()
    assert (gpu.temperature, gpu.power_draw) == (41, None)


def test_gputil_reads_the_same_from_the_same_program(install: Install) -> None:
    # GPUtil needs distutils, which Python 3.12 lost and 3.11 warns of: hence a process of its own.
    install(printing(FOUR))
    program = "import GPUtil; print([[g.id, g.uuid, g.name, g.memoryTotal, g.memoryFree] for g in GPUtil.getGPUs()])"
    answer = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    ours = [[g.index, g.uuid, g.name, g.memory_total / MB, g.memory_free / MB] for g in list_gpus()]
    assert json.loads(answer.stdout.replace("'", '"')) == ours


def test_a_line_that_is_no_gpu_leaves_the_others(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    lines = FOUR.splitlines()
    lines[1] = "Unable to determine the device handle for GPU 0000:0A:00.0: Unknown Error"
    install(printing("\n".join(lines)))
    assert [gpu.index for gpu in list_gpus()] == [0, 2, 3]
    assert "Unknown Error" in caplog.text


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("echo 'No devices were found'; exit 6", id="no devices"),
        pytest.param("echo 'NVIDIA-SMI has failed because it could not talk to the driver.'; exit 9", id="exit 9"),
        pytest.param("true", id="nothing"),
        pytest.param("echo; echo", id="empty lines"),
        pytest.param("echo '<html>502</html>'", id="another program's output"),
        pytest.param(r"printf '\377\000\n\376, \033, 7'", id="bytes"),
        pytest.param("printf '0, GPU-5f3a, 37, 153'", id="cut off"),
        pytest.param(printing(ONE.replace("15360", "[N/A]")), id="no memory"),
        pytest.param(printing(ONE.replace("15360", "-5")), id="negative memory"),
        pytest.param(printing(ONE.replace("15360", "nan")), id="NaN memory"),
        pytest.param("kill -9 $$", id="killed"),
    ],
)
def test_broken_output_is_no_gpu_and_a_warning(install: Install, caplog: pytest.LogCaptureFixture, body: str) -> None:
    install(body)
    assert list_gpus() == []
    assert "WARNING" in {record.levelname for record in caplog.records}
    assert "nvidia-smi" in caplog.text


def test_a_program_that_cannot_run_is_no_gpu_and_a_warning(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    install("").write_bytes(b"\x7fELF of another machine")
    assert list_gpus() == []
    assert "nvidia-smi failed" in caplog.text


def test_no_driver_is_not_even_a_warning(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert list_gpus() == []
    assert caplog.records == []


def test_a_hanging_program_is_killed_with_all_it_started(
    install: Install, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / "pid"
    install(f"sleep 1000 & echo $! > {note}; wait")

    class Started(subprocess.Popen[bytes]):
        """The time to answer begins when the program has started the other one."""

        def communicate(self, *given: Any, **more: Any) -> Any:
            wait_for(lambda: note.exists() and note.read_text().endswith("\n"), "the program runs")
            return super().communicate(*given, **more)

    monkeypatch.setattr("onyx.memory.devices.nvidia_smi.subprocess.Popen", Started)
    assert smi_gpus(timeout=0.1) == []
    assert "no answer in 0.1 s" in caplog.text
    wait_for(lambda: has_ended(int(note.read_text())), "what it started is killed too")


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
