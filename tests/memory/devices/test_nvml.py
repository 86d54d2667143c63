"""The cards that NVML names, with a library built here in place of the driver's."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.waiting import PATIENCE

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
