"""What nvidia-smi prints, as a shell script that prints it, for hosts without an NVIDIA driver."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from onyx.memory.devices import gpus
from tests.waiting import PATIENCE

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
"""The fixture `install`: makes a shell script this host's nvidia-smi."""

list_gpus = partial(gpus.list_gpus, timeout=PATIENCE)  # these tests are not about timeouts, and a busy host is slow


def printing(text: str) -> str:
    return f"cat <<'END'\n{text}\nEND"
