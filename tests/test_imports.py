"""What importing costs, and what it must not touch."""

import json
import subprocess
import sys

IMPORTING = """
import importlib, json, logging, sys, warnings
import torch

def state():
    return [len(warnings.filters), len(logging.root.handlers), torch.get_num_threads()]

def packages():
    return {name.partition(".")[0] for name in sys.modules}

before, had, brought = state(), packages(), {}
for module in sys.argv[1:]:
    importlib.import_module(module)
    assert state() == before, module
    brought[module] = sorted(packages() - had - sys.stdlib_module_names)
print(json.dumps(brought))
"""
LIBRARIES = (
    "onyx.accumulation.functional",
    "onyx.accumulation.engine",
    "onyx.accumulation.system",
    "onyx.accumulation.ads",
)
PLANNING = "onyx.server.features.ads.gradient_accumulation"


def run(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_import_onyx_is_free_of_torch() -> None:
    assert run("import onyx, sys; print('torch' in sys.modules, onyx.__version__)") == "False 0.1.0"


def test_the_accumulation_libraries_import_nothing_but_torch_and_change_nothing() -> None:
    """One process imports them one after the other: what each brought is what all before it brought, and its own."""
    brought = json.loads(run(IMPORTING, *LIBRARIES, PLANNING))
    assert {module: brought[module] for module in LIBRARIES} == {module: ["onyx"] for module in LIBRARIES}
    assert set(brought[PLANNING]) <= {"onyx", "psutil"}  # where the accumulator meets the planner
