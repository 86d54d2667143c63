"""Inside a new child: set its name and priority, then run its target."""

import importlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onyx.settings import Settings
from onyx.training.contract.child_process import lower_priority

WANDB_API_KEY = "WANDB_API_KEY"
"""The variable in which W&B looks for its key."""


def set_process_name(name: str) -> None:
    """The name that `ps` and `pgrep` show; Linux keeps 15 characters."""
    comm = Path("/proc/self/comm")
    if comm.exists():
        comm.write_text(name[:15])


def resolve(target: str) -> Callable[..., Any]:
    """The function that `package.module:function` names. Only functions of Onyx: no user may choose what is run."""
    module, _, function = target.partition(":")
    if not module.startswith("onyx.") or not function:
        raise ValueError(f"not one of Onyx's own functions: {target}")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def run_target(name: str, target: str, arguments: list[str], niceness: int) -> int:
    """Run the target in this process; its exit status."""
    lower_priority(niceness)
    set_process_name(name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal: the runner handles it
    status = resolve(target)(*arguments)
    return int(status or 0)


def main() -> None:
    """`python -m onyx.jobs.launch.child name niceness target arguments…`"""
    name, niceness, target, *arguments = sys.argv[1:]
    sys.exit(run_target(name, target, arguments, int(niceness)))


def inherited() -> dict[str, str]:
    """This process's environment without secrets: a model's own code, where an operator allows it, could read them."""
    withheld = Settings.secret_variables() | {WANDB_API_KEY}
    return {name: value for name, value in os.environ.items() if name not in withheld}


if __name__ == "__main__":
    main()
