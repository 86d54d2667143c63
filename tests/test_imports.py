"""What importing costs, and what it must not touch."""

import subprocess
import sys

import pytest


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_import_onyx_is_free_of_torch() -> None:
    assert run("import onyx, sys; print('torch' in sys.modules, onyx.__version__)") == "False 0.1.0"


@pytest.mark.parametrize(
    "module",
    [
        "onyx.accumulation.functional",
        "onyx.accumulation.engine",
        "onyx.accumulation.system",
        "onyx.server.features.ads.gradient_accumulation",
    ],
)
def test_a_library_imports_nobody_elses_framework_and_changes_nothing(module: str) -> None:
    code = (
        "import logging, sys, warnings, torch\n"
        "before = (list(warnings.filters), list(logging.root.handlers), torch.get_num_threads())\n"
        f"import {module}\n"
        "assert before == (list(warnings.filters), list(logging.root.handlers), torch.get_num_threads())\n"
        "print([name for name in ('jax', 'lightning', 'wandb', 'transformers', 'fastapi') if name in sys.modules])"
    )
    assert run(code) == "[]"
