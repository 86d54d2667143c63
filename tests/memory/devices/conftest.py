"""A host whose NVIDIA driver is a script."""

import os
import sys
from pathlib import Path

import pytest

from tests.memory.devices.nvidia_smi_output import Install


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
