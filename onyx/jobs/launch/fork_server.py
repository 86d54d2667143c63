"""The fork server: a process that has torch imported and forks the children of its runner (`onyx-template` in ps).

A fork starts in milliseconds where a fresh interpreter takes seconds. So that forking is safe, the fork server runs no
tensor operation, opens no GPU and has one thread. If one of these does not hold it refuses, and the launcher starts a
fresh interpreter instead. One socket connects it to its runner: requests come with the child's descriptors, pids and
exit codes go back. When the socket closes, the fork server exits; children have lifelines of their own.
"""

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from onyx.jobs.launch.child import run_target, set_process_name
from onyx.training.contract.child_process import LIFELINE, Niceness, lower_priority

PRELOADED = (
    "onyx.training.preload",
    "onyx.training.prepare.main",
    "onyx.training.prepare.plan_estimate",
    "onyx.training.chat.main",
    "onyx.training.prepare.plan_job",
)
"""Imports that would cost each child seconds."""

MAX_REQUEST_BYTES = 1 << 20
"""A request is one packet."""


class ForkServer:
    """Forks on request and reports exits."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ)

    def serve(self) -> None:
        """Serve until the runner closes its end."""
        self._send({"ready": os.getpid()})
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._channel:
                    if not self._handle_request():
                        return
                else:
                    self._report(int(key.fd), int(key.data))

    def _handle_request(self) -> bool:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._channel, MAX_REQUEST_BYTES, maxfds=2)
        except ConnectionResetError:
            return False
        if not message:
            return False
        request = json.loads(message)
        refusal = unsafe_to_fork()
        if refusal:
            self._send({"refused": refusal, "id": request["id"]})
        else:
            self._fork(request, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _fork(self, request: dict[str, Any], lifeline: int, log: int) -> None:
        pid = os.fork()
        if pid == 0:
            self._channel.close()
            self._selector.close()
            become(request, lifeline, log)
        descriptor = os.pidfd_open(pid)
        self._selector.register(descriptor, selectors.EVENT_READ, data=pid)
        # With the descriptor: when the runner reads this, the pid may be free or reused.
        self._send({"started": pid, "id": request["id"]}, descriptor)

    def _report(self, descriptor: int, pid: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(pid, 0)
        self._send({"ended": pid, "code": os.waitstatus_to_exitcode(status)})

    def _send(self, message: dict[str, Any], *descriptors: int) -> None:
        with contextlib.suppress(BrokenPipeError):  # the runner is gone: the next read says so
            socket.send_fds(self._channel, [json.dumps(message).encode()], descriptors)


def become(request: dict[str, Any], lifeline: int, log: int) -> NoReturn:
    """In the fork: run the child. Never returns into the fork server's loop."""
    status = 1
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.set_inheritable(lifeline, True)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.environ.update(request["environment"])
        os.environ[LIFELINE] = str(lifeline)
        gc.enable()
        status = run_target(request["name"], request["target"], request["arguments"], request["niceness"])
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)  # without the fork server's exit handlers


def unsafe_to_fork() -> str | None:
    """Why a fork of this process would not be safe; None if it is."""
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        return f"it has {threads} threads"
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(descriptor.readlink()).startswith("/dev/nvidia"):
                return "it has a GPU open"
    return None


def main() -> None:
    """`python -m onyx.jobs.launch.fork_server <socket descriptor>`"""
    set_process_name("onyx-template")
    lower_priority(Niceness.FORK_SERVER)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    channel = socket.socket(fileno=int(sys.argv[1]))
    for module in PRELOADED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # forks share these objects' pages as long as the collector does not touch them
    ForkServer(channel).serve()


if __name__ == "__main__":
    main()
