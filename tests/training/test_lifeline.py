import os
import subprocess
import sys
import time

from onyx.training.lifeline import LIFELINE

CHILD = (
    "import sys, time; from onyx.training.lifeline import watch; "
    "watch(int(sys.argv[1]), float(sys.argv[2])); print('up', flush=True); time.sleep(30)"
)


def child(reader: int, silence: float) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(reader), str(silence)],
        pass_fds=(reader,),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(reader)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def test_the_end_of_the_file_ends_the_child_at_once() -> None:
    reader, writer = os.pipe()
    process = child(reader, silence=60)
    os.write(writer, b"..")
    time.sleep(0.05)
    assert process.poll() is None
    os.close(writer)
    _, said = process.communicate(timeout=10)
    assert process.returncode == 1
    assert said == "the runner is gone: leaving\n"


def test_silence_ends_the_child_and_beats_keep_it() -> None:
    reader, writer = os.pipe()
    process = child(reader, silence=0.5)
    for _ in range(8):
        os.write(writer, b".")
        time.sleep(0.1)
    assert process.poll() is None
    process.communicate(timeout=10)
    assert process.returncode == 1
    os.close(writer)


def test_what_a_launcher_hands_down_is_watched() -> None:
    reader, writer = os.pipe()
    code = "import time; from onyx.training.lifeline import watch_inherited; watch_inherited(60); time.sleep(30)"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        pass_fds=(reader,),
        env=os.environ | {LIFELINE: str(reader)},
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(reader)
    os.close(writer)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (1, "the runner is gone: leaving\n")
