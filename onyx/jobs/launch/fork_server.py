"""The template: a process that has torch imported and forks whoever is to work with it.

A fork starts in milliseconds where a fresh interpreter takes seconds. It must be a fork of something harmless, so the
template runs no tensor operation, opens no GPU and has one thread; if one of these is not so, it refuses, and the
launcher starts a fresh interpreter instead. It talks to its runner over one socket: requests come with the child's
descriptors, pids and ends go back. When the socket closes, the template exits; children have lifelines of their own.
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

from onyx.jobs.launch.child import set_process_name, work
from onyx.training.contract.child_process import LIFELINE, Niceness, lower_priority

PRELOADED = (
    "onyx.training.preload",
    "onyx.training.prepare.main",
    "onyx.training.prepare.plan_estimate",
    "onyx.training.chat.main",
    "onyx.training.prepare.plan_job",
)
"""What children would otherwise spend their first seconds on."""

MOST_BYTES = 1 << 20
"""A request is one packet of at most this size."""


class ForkServer:
    """Forks on request and reports ends."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ)

    def serve(self) -> None:
        """Until the runner closes its end."""
        self._say({"ready": os.getpid()})
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._channel:
                    if not self._request():
                        return
                else:
                    self._report(int(key.fd), int(key.data))

    def _request(self) -> bool:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._channel, MOST_BYTES, maxfds=2)
        except ConnectionResetError:
            return False
        if not message:
            return False
        request = json.loads(message)
        refusal = unsafe_to_fork()
        if refusal:
            self._say({"refused": refusal})
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
        # With the descriptor: by the time the runner hears of it, the pid may be that of nothing or of something else.
        self._say({"started": pid}, descriptor)

    def _report(self, descriptor: int, pid: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(pid, 0)
        self._say({"ended": pid, "code": os.waitstatus_to_exitcode(status)})

    def _say(self, message: dict[str, Any], *descriptors: int) -> None:
        with contextlib.suppress(BrokenPipeError):  # the runner is gone: the next read says so
            socket.send_fds(self._channel, [json.dumps(message).encode()], descriptors)


def become(request: dict[str, Any], lifeline: int, log: int) -> NoReturn:
    """In the fork: be the child that was asked for. Never returns into the template's loop."""
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
        status = work(request["name"], request["target"], request["arguments"], request["niceness"])
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)  # the template's exit handlers are not the child's


def unsafe_to_fork() -> str | None:
    """Why a fork of this process would not be safe, if it would not."""
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        return f"the template has {threads} threads"
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(descriptor.readlink()).startswith("/dev/nvidia"):
                return "the template has a GPU open"
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
    gc.freeze()  # what is here now is shared with every fork: do not touch it again
    ForkServer(channel).serve()


if __name__ == "__main__":
    main()
