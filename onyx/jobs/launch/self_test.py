"""A child that follows one order: `onyx doctor` and tests start it to check that launching works on this host."""

import os
import signal
import sys
import time

from onyx.training.contract.child_process import LIFELINE


def main(order: str, value: str = "") -> int:
    """Exit with a status, die by a signal, print a variable, or wait for the end of the lifeline."""
    if order == "exit":
        return int(value)
    if order == "die":
        os.kill(os.getpid(), int(value))
        signal.pause()
    if order == "say":
        sys.stdout.write(f"{os.environ.get(value)} {'torch' in sys.modules}\n")
        return 0
    if order == "wait":
        while os.read(int(os.environ[LIFELINE]), 64):
            time.sleep(0.01)
        return 0
    raise ValueError(f"unknown order: {order}")
