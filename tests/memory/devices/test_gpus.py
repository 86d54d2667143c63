import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from onyx.memory.devices import gpus as gpus_module
from onyx.memory.devices.device import Device
from onyx.memory.devices.gpus import gpu_info, list_gpus_async, select, visible
from onyx.memory.devices.nvidia_smi import smi_gpus
from tests.waiting import PATIENCE, wait_for

MB = 2**20

# Recorded with GPUtil's columns and power at the end.
ONE = (
    "0, GPU-5f3a1c00-0000-0000-0000-000000000000, 37, 15360, 1024, 14330, 535.104.05, Tesla T4, 132, "
    "Disabled, Disabled, 41, 27.53"
)
FOUR = "\n".join(
    f"{i}, GPU-{uuid}-0000-0000-0000-000000000000, {10 * i}, 40960, {1024 * i}, {40536 - 1024 * i}, 550.54.14, "
    f"NVIDIA A100-SXM4-40GB, 156, Enabled, Enabled, {30 + i}, {50 + i}.25"
    for i, uuid in enumerate(["aaaa0000", "aaaa1111", "bbbb2222", "cccc3333"])
)
UUIDS = [line.split(", ")[1] for line in FOUR.splitlines()]
NOT_AVAILABLE = (
    "0, GPU-5f3a, [N/A], 40960, 3, 40533, 550.54.14, NVIDIA A100, [N/A], [N/A], [N/A], [Unknown Error], [Not Supported]"
)

Install = Callable[[str], Path]

list_gpus = partial(gpus_module.list_gpus, timeout=PATIENCE)  # what is tested is no timeout: a busy host may be slow


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """A host without NVML, whose nvidia-smi is the given shell script."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def script(body: str) -> Path:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
        return program

    return script


def printing(text: str) -> str:
    return f"cat <<'END'\n{text}\nEND"


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


async def let_it_answer(gate: Path) -> None:
    """Wait until the program reads from the gate, and let it go on."""
    while True:
        try:
            writer = os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # there is no reader yet
            await asyncio.sleep(0.01)
            continue
        os.close(writer)
        return


def test_the_event_loop_goes_on_while_a_program_hangs(install: Install, tmp_path: Path) -> None:
    """It is the loop that lets the program answer: one that waited for it would never hear it."""
    os.mkfifo(tmp_path / "gate")
    install(f"cat {tmp_path}/gate; {printing(ONE)}")

    async def ask() -> list[Device]:
        look = asyncio.create_task(list_gpus_async(timeout=PATIENCE))
        await let_it_answer(tmp_path / "gate")
        return await look

    assert len(asyncio.run(ask())) == 1


def test_callers_at_the_same_time_share_one_look(install: Install, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    install(f"echo run >> {tmp_path}/runs; cat {tmp_path}/gate; {printing(ONE)}")

    async def ask() -> list[list[Device]]:
        impatient = asyncio.create_task(list_gpus_async(timeout=PATIENCE))
        others = [asyncio.create_task(list_gpus_async(timeout=PATIENCE)) for _ in range(20)]
        await asyncio.sleep(0)  # each has asked
        impatient.cancel()
        await let_it_answer(tmp_path / "gate")
        return await asyncio.gather(*others)

    answers = asyncio.run(ask())
    assert [len(answer) for answer in answers] == [1] * 20
    assert (tmp_path / "runs").read_text() == "run\n"


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("0,1,2,3", [0, 1, 2, 3]),
        ("2", [2]),
        ("3,1", [3, 1]),
        (" 1 , 2", [1, 2]),
        ("1gpu,2", [1, 2]),
        ("", []),
        ("-1", []),
        ("0,-1,1", [0]),
        ("0,9,1", [0]),
        ("NoDevFiles", []),
        ("1,1", []),
        ("GPU-bbbb,GPU-aaaa1", [2, 1]),
        (f"{UUIDS[3]},{UUIDS[0]}", [3, 0]),
        ("GPU-aaaa", []),
        ("GPU-bbbb,GPU-aaaa,GPU-cccc", [2]),
        ("GPU-bbbb,0", [2]),
        ("0,GPU-bbbb", [0]),
        ("GPU-b,GPU-bbbb", []),
        ("MIG-1234", []),
    ],
)
def test_visible_devices_are_numbered_as_cuda_does(
    install: Install, monkeypatch: pytest.MonkeyPatch, setting: str, expected: list[int]
) -> None:
    install(printing(FOUR))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    gpus = list_gpus()
    assert [gpu.uuid for gpu in gpus] == [UUIDS[number] for number in expected]
    assert [gpu.index for gpu in gpus] == list(range(len(expected)))


def card(index: int, uuid: str, name: str = "A100") -> Device:
    return Device(kind="cuda", index=index, name=name, uuid=uuid, memory_total=40 * MB, memory_free=30 * MB)


CARDS = [card(index, uuid) for index, uuid in enumerate(UUIDS)]
NUMBERS = st.sampled_from(["0", "1", "2", "3", "4", "17", "-1", "-0", "+2", " 1", "2x", "x", "", "GPU-bbbb"])
NAMES = st.sampled_from(["GPU-aaaa0", "GPU-aaaa", "GPU-b", "GPU-bbbb", "GPU-cccc", "GPU-x", "MIG-1", " GPU-b", "0"])


def seen_by_torch(setting: str) -> list[str]:
    """Torch's own reading of the variable, which it also makes without a GPU."""
    with patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": setting}):
        names: list[Any] = torch.cuda._parse_visible_devices()
    if names and isinstance(names[0], str):
        names = torch.cuda._transform_uuid_to_ordinals(names, UUIDS)
    known = next((place for place, number in enumerate(names) if number >= len(UUIDS)), len(names))
    return [UUIDS[number] for number in names[:known]]


@given(st.lists(NUMBERS, max_size=4) | st.lists(NAMES, min_size=1, max_size=4))
def test_visible_devices_are_those_that_torch_counts(entries: list[str]) -> None:
    setting = ",".join(entries)
    if not setting.startswith("MIG-"):
        assert [gpu.uuid for gpu in visible(setting, CARDS)] == seen_by_torch(setting)


def test_mig_instances_are_visible_by_name_only() -> None:
    cards = [*CARDS[:2], card(2, "MIG-aaaa"), card(3, "MIG-bbbb")]
    assert visible(None, cards) == CARDS[:2]
    assert visible("MIG-bbbb", cards) == [card(0, "MIG-bbbb")]
    assert visible("2", cards) == []


def test_an_unreadable_card_does_not_shift_the_others() -> None:
    assert [gpu.index for gpu in visible(None, [CARDS[0], CARDS[2]])] == [0, 2]


def test_cards_that_cuda_may_order_otherwise_are_told_once(
    install: Install, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(printing(f"{ONE}\n{FOUR.splitlines()[1]}"))
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert len(list_gpus()) == 2
    assert caplog.text == ""
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    list_gpus()
    list_gpus()
    assert caplog.text.count("set CUDA_DEVICE_ORDER=PCI_BUS_ID") == 1


def torch_with(order: list[int], contexts: list[int], initialized: bool = True) -> SimpleNamespace:
    """Torch on a host with the four cards: which number each has, and where this process has a context."""

    def memory(index: int) -> tuple[int, int]:
        assert index in contexts, "asking would have made a context"
        return 7 * MB, 39 * MB

    def properties(index: int) -> SimpleNamespace:
        uuid = UUIDS[order[index]].removeprefix("GPU-")
        return SimpleNamespace(uuid=uuid, name="A100", total_memory=40000 * MB)

    return SimpleNamespace(
        cuda=SimpleNamespace(
            is_initialized=lambda: initialized,
            device_count=lambda: len(order),
            get_device_properties=properties,
            mem_get_info=memory,
        ),
        _C=SimpleNamespace(_cuda_hasPrimaryContext=lambda index: index in contexts),
    )


def test_where_cuda_runs_its_own_numbers_count(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(printing(FOUR))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")  # changed after CUDA had started: without effect, as in CUDA
    monkeypatch.setitem(sys.modules, "torch", torch_with(order=[3, 0], contexts=[0]))
    first, second = list_gpus()
    assert (first.index, first.uuid, first.temperature) == (0, UUIDS[3], 33)
    assert (first.memory_free, first.memory_total) == (7 * MB, 39 * MB)
    assert (second.index, second.uuid, second.temperature) == (1, UUIDS[0], 30)
    assert (second.memory_free, second.memory_total) == (40000 * MB, 40000 * MB)


def test_torch_without_cuda_running_is_not_asked(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(printing(FOUR))
    monkeypatch.setitem(sys.modules, "torch", torch_with(order=[3], contexts=[], initialized=False))
    assert [gpu.uuid for gpu in list_gpus()] == UUIDS


def test_torch_alone_knows_the_cards_it_works_on(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("exit 9")
    monkeypatch.setitem(sys.modules, "torch", torch_with(order=[2, 3], contexts=[0]))
    assert [(gpu.label, gpu.uuid, gpu.memory_free) for gpu in list_gpus()] == [("cuda:0", UUIDS[2], 7 * MB)]


def test_a_torch_that_fails_is_no_exception(
    install: Install, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_index: int) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    install(printing(FOUR))
    broken = torch_with(order=[0], contexts=[0])
    broken.cuda.get_device_properties = fail
    monkeypatch.setitem(sys.modules, "torch", broken)
    assert list_gpus() == []
    assert "illegal memory access" in caplog.text


def test_select_takes_the_ids_in_their_order() -> None:
    assert select(CARDS, [2, 0]) == [CARDS[2], CARDS[0]]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "no id was given; there are 0, 1, 2, 3"),
        ([7], "for the ids 7: there are 0, 1, 2, 3"),
        ([0, 7, -1], "for the ids 7, -1: there are"),
        ([True], "for the ids True"),
        (["0"], "for the ids '0'"),
        ([1, 1], "an id is there twice"),
    ],
)
def test_select_names_the_ids_that_are_not_there(ids: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^No valid GPUs found.*{message}"):
        select(CARDS, ids)


def test_select_where_there_are_none() -> None:
    with pytest.raises(ValueError, match="No valid GPUs found for the ids 0: there are none"):
        select([], [0])


# A driver's library with five cards: 0 is whole, 1 fell off the bus, 2 has two MIG instances and an empty
# place, 3 measures nothing, 4 has no memory of its own. Handles are numbers; 20 and 21 are the instances.
NVML = r"""
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#define OK 0
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define IS_LOST 15
typedef long dev;
static int open_sessions = 0;
int nvmlInitWithFlags(unsigned flags) { if (getenv("HANG")) sleep(1000); open_sessions++; return OK; }
int nvmlShutdown(void) { open_sessions--; return OK; }
int sessions(void) { return open_sessions; }
const char *nvmlErrorString(int code) { return code == IS_LOST ? "GPU is lost" : "another error"; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 5; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, dev *d) { *d = i; return i == 1 ? IS_LOST : OK; }
int nvmlDeviceGetName(dev d, char *s, unsigned n) { snprintf(s, n, "card %ld", d); return OK; }
int nvmlDeviceGetUUID(dev d, char *s, unsigned n) { snprintf(s, n, "%s-%ld", d < 20 ? "GPU" : "MIG", d); return OK; }
int nvmlDeviceGetMemoryInfo(dev d, unsigned long long *m) {
  if (d == 4) return NOT_SUPPORTED;
  m[0] = 40ull << 30; m[1] = 30ull << 30; m[2] = 10ull << 30; return OK;
}
int nvmlDeviceGetUtilizationRates(dev d, unsigned *u) { u[0] = 37; u[1] = 5; return d ? NOT_SUPPORTED : OK; }
int nvmlDeviceGetTemperature(dev d, int sensor, unsigned *t) { *t = 41; return d == 3 ? NOT_SUPPORTED : OK; }
int nvmlDeviceGetPowerUsage(dev d, unsigned *p) { *p = 60250; return d ? NOT_SUPPORTED : OK; }
int nvmlDeviceGetMigMode(dev d, unsigned *now, unsigned *next) { *now = *next = d == 2; return d ? OK : NOT_SUPPORTED; }
int nvmlDeviceGetMaxMigDeviceCount(dev d, unsigned *n) { *n = 3; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(dev d, unsigned i, dev *m) { *m = 20 + i; return i < 2 ? OK : NOT_FOUND; }
"""

ASK = """
import ctypes, dataclasses, json, logging, sys
from onyx.memory.devices.gpus import list_gpus
logging.basicConfig(format="%(message)s")
gpus = list_gpus(timeout=float(sys.argv[1]))
sessions = ctypes.CDLL("libnvidia-ml.so.1").sessions()
print(json.dumps([[dataclasses.asdict(gpu) for gpu in gpus], sessions]))
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler to build a stand-in for the driver's library")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "nvml.c").write_text(NVML)
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, folder / "nvml.c"], check=True)
    return folder


def ask(driver: Path, timeout: float = PATIENCE, **environment: str) -> tuple[list[dict[str, Any]], int, str]:
    """What a process under this driver lists, its open NVML sessions, and its log."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    child = subprocess.run(
        [sys.executable, "-c", ASK, str(timeout)],
        env={**clean, "LD_LIBRARY_PATH": str(driver), "CUDA_DEVICE_ORDER": "PCI_BUS_ID", **environment},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=True,
    )
    gpus, sessions = json.loads(child.stdout)
    return gpus, sessions, child.stderr


def test_nvml_lists_the_cards_and_is_closed_again(driver: Path) -> None:
    gpus, sessions, log = ask(driver)
    assert gpus[0] == {
        "kind": "cuda",
        "index": 0,
        "name": "card 0",
        "uuid": "GPU-0",
        "memory_total": 40 * 2**30,
        "memory_free": 30 * 2**30,
        "cores": None,
        "utilization": 37,
        "temperature": 41,
        "power_draw": 60.25,
        "speed": None,
    }
    assert [gpu["index"] for gpu in gpus] == [0, 2, 3, 4]
    assert [gpus[2][reading] for reading in ("utilization", "temperature", "power_draw")] == [None] * 3
    assert gpus[3]["memory_total"] == psutil.virtual_memory().total
    assert sessions == 0
    assert "GPU 1 cannot be read: GPU is lost" in log


def test_nvml_knows_a_mig_instance_by_its_name(driver: Path) -> None:
    gpus, *_ = ask(driver, CUDA_VISIBLE_DEVICES="MIG-21")
    assert [(gpu["index"], gpu["uuid"]) for gpu in gpus] == [(0, "MIG-21")]


def test_a_hung_driver_times_out(driver: Path) -> None:
    gpus, _, log = ask(driver, timeout=0.2, HANG="1")  # the driver itself would answer in 1000 s
    assert gpus == []
    assert "the NVIDIA driver gave no answer" in log


def test_every_gpu_under_its_id_in_the_contracts_fields_and_units() -> None:
    device = Device(
        kind="cuda",
        index=3,
        name="NVIDIA A100-SXM4-40GB",
        uuid="GPU-3",
        memory_total=40960 * MB,
        memory_free=30720 * MB,
        utilization=37,
        temperature=41,
        power_draw=60.25,
    )
    assert gpu_info([device]) == {
        "gpu_3": {
            "id": 3,
            "name": "NVIDIA A100-SXM4-40GB",
            "memory_total": 40960,
            "memory_used": 10240,
            "memory_free": 30720,
            "memory_utilization": 25,
            "gpu_utilization": 37,
            "temperature": 41,
            "power_draw": 60.25,
        }
    }


def test_a_missing_reading_is_null_in_json() -> None:
    device = Device(kind="cuda", index=0, name="T4", memory_total=3, memory_free=1)
    answer = json.loads(json.dumps(gpu_info([device]), allow_nan=False))["gpu_0"]
    assert (answer["gpu_utilization"], answer["temperature"], answer["power_draw"]) == (None, None, None)
    assert answer["memory_utilization"] == 66.67


def test_the_cpu_is_no_gpu() -> None:
    assert gpu_info([Device(kind="cpu", index=0, name="EPYC", memory_total=1, memory_free=1, cores=1)]) == {}
