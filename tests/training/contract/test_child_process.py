"""Lifelines: a child ends when its launcher is gone."""

import os
import subprocess
import sys

from onyx.training.contract.child_process import LIFELINE
from tests.waiting import PATIENCE

CHILD = """
import sys, time
from onyx.training.contract.child_process import watch_lifeline
watch_lifeline(int(sys.argv[1]), float(sys.argv[2]))
print("up", flush=True)
time.sleep(600)
"""

TIMED = """
import select, sys, time
from onyx.training.contract import child_process

beats, clock = int(sys.argv[1]), int(sys.argv[3])
real = select.poll

class Poll:
    '''Waits for a beat, or for the test to say that the time is over.'''
    def __init__(self):
        self._real = real()
        self._real.register(clock, select.POLLIN)
    def register(self, descriptor, events):
        self._real.register(descriptor, events)
    def poll(self, milliseconds):
        print(milliseconds, flush=True)
        return [ready for ready in self._real.poll() if ready[0] == beats]

select.poll = Poll
child_process.watch_lifeline(beats, float(sys.argv[2]))
time.sleep(600)
"""


def child(code: str, silence: float, *readers: int) -> subprocess.Popen[str]:
    first, *others = map(str, readers)
    process = subprocess.Popen(
        [sys.executable, "-c", code, first, str(silence), *others],
        pass_fds=readers,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for reader in readers:
        os.close(reader)
    return process


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip()


def test_end_of_file_ends_the_child() -> None:
    reader, writer = os.pipe()
    process = child(CHILD, 3600, reader)
    assert read_line(process) == "up"
    os.write(writer, b"..")
    assert process.poll() is None
    os.close(writer)
    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert stderr == "the runner is gone: leaving\n"


def test_silence_ends_the_child() -> None:
    reader, writer = os.pipe()
    process = child(CHILD, 0.1, reader)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    os.close(writer)


def test_the_lifeline_that_the_environment_names_is_watched() -> None:
    reader, writer = os.pipe()
    code = (
        "import time; from onyx.training.contract.child_process import watch_inherited_lifeline; "
        "watch_inherited_lifeline(60); time.sleep(900)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        pass_fds=(reader,),
        env=os.environ | {LIFELINE: str(reader)},
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(reader)
    os.close(writer)
    _, stderr = process.communicate(timeout=600)
    assert (process.returncode, stderr) == (1, "the runner is gone: leaving\n")


def test_each_beat_restarts_the_wait() -> None:
    reader, writer = os.pipe()
    over, clock = os.pipe()
    process = child(TIMED, 7, reader, over)
    for _ in range(8):
        assert read_line(process) == "7000.0"
        os.write(writer, b".")
    assert read_line(process) == "7000.0"  # alive, and it waits again
    assert process.poll() is None
    os.write(clock, b".")
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    os.close(writer)
    os.close(clock)
