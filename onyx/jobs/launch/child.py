"""Inside a new child: put on the name, the output and the environment that it was given, then work."""

import importlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onyx.settings import Settings
from onyx.training.contract.child_process import lower_priority


def set_process_name(name: str) -> None:
    """The name that `ps` and `pgrep` show; Linux keeps 15 characters."""
    comm = Path("/proc/self/comm")
    if comm.exists():
        comm.write_text(name[:15])


def resolve(target: str) -> Callable[..., Any]:
    """The function that `package.module:function` names. Only Onyx's own: targets are never a user's words."""
    module, _, function = target.partition(":")
    if not module.startswith("onyx.") or not function:
        raise ValueError(f"not one of Onyx's own functions: {target}")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def work(name: str, target: str, arguments: list[str], niceness: int) -> int:
    """Run the target as this process's whole life; its exit status."""
    lower_priority(niceness)
    set_process_name(name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is the runner's to handle
    status = resolve(target)(*arguments)
    return int(status or 0)


def main() -> None:
    """`python -m onyx.jobs.launch.child name niceness target arguments…`"""
    name, niceness, target, *arguments = sys.argv[1:]
    sys.exit(work(name, target, arguments, int(niceness)))


if __name__ == "__main__":
    main()


WANDB_API_KEY = "WANDB_API_KEY"
"""W&B's own name for its key."""


def inherited() -> dict[str, str]:
    """A model's own code, where the operator allows any, has no business with them."""
    withheld = Settings.secret_variables() | {WANDB_API_KEY}
    return {name: value for name, value in os.environ.items() if name not in withheld}
