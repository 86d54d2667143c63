"""The cards as nvidia-smi lists them, for hosts without NVML."""

import logging
import math
import os
import shutil
import signal
import subprocess
from collections.abc import Iterable
from contextlib import suppress

from onyx.memory.devices.device import Device

logger = logging.getLogger(__name__)

# GPUtil wraps nvidia-smi, but waits for it without a limit, raises on an unexpected line, needs distutils and
# reads no power. So nvidia-smi is run here directly, with GPUtil's columns in GPUtil's order and power at the end:
# output that was recorded for GPUtil can be read, and a driver that hangs costs a timeout.
GPUTIL_COLUMNS = (
    *("index", "uuid", "utilization.gpu", "memory.total", "memory.used", "memory.free", "driver_version"),
    *("name", "gpu_serial", "display_active", "display_mode", "temperature.gpu"),
)
COLUMNS = (*GPUTIL_COLUMNS, "power.draw")

MB = 2**20  # nvidia-smi's unit
KILL_SECONDS = 1.0  # how long to wait for a killed nvidia-smi: one that is stuck in the driver never ends


def smi_gpus(timeout: float) -> list[Device]:
    """Every card in PCI bus order. Empty, with a warning, when nvidia-smi is there and does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        logger.debug("no NVIDIA driver: neither NVML nor nvidia-smi", extra={"action": "no_driver"})
        return []
    try:
        output = _run([program, f"--query-gpu={','.join(COLUMNS)}", "--format=csv,noheader,nounits"], timeout)
    except subprocess.TimeoutExpired:
        logger.warning("nvidia-smi gave no answer in %g s", timeout, extra={"action": "smi_timeout"})
        return []
    except (OSError, subprocess.CalledProcessError) as error:
        logger.warning("nvidia-smi failed: %s", error, extra={"action": "smi_failed"})
        return []
    return _parse(output.splitlines())


def _run(command: list[str], timeout: float) -> str:
    """The command's output. At the timeout its whole process group is killed."""
    process = subprocess.Popen(  # noqa: S603 (a fixed command, no shell)
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=KILL_SECONDS)
        raise
    if process.returncode != 0:
        # Its message is on standard output: "No devices were found", "NVIDIA-SMI has failed because …".
        said = output.decode(errors="replace").strip()
        raise subprocess.CalledProcessError(process.returncode, f"{command[0]} ({said[:200]})")
    return output.decode(errors="replace")


def _parse(lines: Iterable[str]) -> list[Device]:
    cards: dict[int, Device] = {}
    for line in filter(str.strip, lines):
        try:
            card = _device([cell.strip() for cell in line.split(",")])
        except ValueError as error:
            logger.warning("nvidia-smi's line %.200r is no GPU: %s", line, error, extra={"action": "smi_unreadable"})
        else:
            cards[card.index] = card
    if not cards:
        logger.warning("nvidia-smi names no GPU", extra={"action": "smi_empty"})
    return [cards[index] for index in sorted(cards)]


def _device(row: list[str]) -> Device:
    if len(row) not in (len(GPUTIL_COLUMNS), len(COLUMNS)):
        raise ValueError(f"it has {len(row)} columns, not {len(COLUMNS)}")
    field = dict(zip(COLUMNS, row, strict=False))
    return Device(
        kind="cuda",
        index=int(field["index"]),
        name=field["name"],
        uuid=field["uuid"],
        memory_total=int(field["memory.total"]) * MB,
        memory_free=int(field["memory.free"]) * MB,
        utilization=_reading(field["utilization.gpu"]),
        temperature=_reading(field["temperature.gpu"]),
        power_draw=_reading(field.get("power.draw", "")),
    )


def _reading(text: str) -> float | None:
    """A number, or None for "[N/A]", "[Not Supported]", "[Unknown Error]" and other text."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
