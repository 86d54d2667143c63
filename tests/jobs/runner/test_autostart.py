import asyncio
import signal
import subprocess
import sys
from pathlib import Path

from onyx.jobs.process_identity import this_process
from onyx.jobs.runner.autostart import (
    LOG_NAME,
    RunnerProcess,
    find_runner,
    living_clients,
    other_clients,
    register_client,
    runner_log,
)
from onyx.jobs.runner.runner_lock import only_one
from onyx.settings import Settings


def test_a_runner_is_stopped_and_waited_for() -> None:
    async def story() -> None:
        runner = RunnerProcess(child.pid)
        assert not await runner.gone(0.01)
        runner.stop()
        assert await runner.gone(30)
        runner.close()

    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as child:
        asyncio.run(story())
    assert child.returncode == -signal.SIGTERM


def test_only_an_embedded_runner_is_found(tmp_path: Path) -> None:
    assert find_runner(tmp_path) is None
    with only_one(tmp_path, embedded=False):
        assert find_runner(tmp_path) is None, "an operator started it"
    with only_one(tmp_path, embedded=True):
        found = find_runner(tmp_path)
        assert found is not None
        found.close()


REGISTER = (
    "import sys; from pathlib import Path; from onyx.jobs.runner.autostart import register_client; "
    "register_client(Path(sys.argv[1])); "
)


def test_dead_clients_are_not_counted(tmp_path: Path) -> None:
    assert living_clients(tmp_path) == []
    register_client(tmp_path)
    register_client(tmp_path)
    assert living_clients(tmp_path) == [this_process()]
    assert other_clients(tmp_path) == []
    command = [sys.executable, "-c", REGISTER + "print(flush=True); sys.stdin.read()", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert [client.pid for client in other_clients(tmp_path)] == [other.pid]
    assert other_clients(tmp_path) == []
    assert len(list((tmp_path / "clients").iterdir())) == 1, "files of dead clients are deleted"


def test_clients_of_other_hosts_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "clients").mkdir()
    far, nonsense = tmp_path / "clients" / "far:boot:1:1", tmp_path / "clients" / "nonsense"
    far.touch()
    nonsense.touch()
    assert living_clients(tmp_path) == []
    assert far.exists()
    assert not nonsense.exists()


LOG_BYTES = 2000

WRITER = """
import logging, os, sys
from pathlib import Path
from onyx import logs
from onyx.jobs.runner.autostart import runner_log
from onyx.settings import Settings

settings = Settings(home=Path(sys.argv[1]), log_bytes=int(sys.argv[2]), log_files=3)
handler = runner_log(settings)
assert handler is not None
logs.configure(settings, handler=handler)
for number in range(100):
    logging.getLogger("onyx").info("line %d", number)
os.write(1, b"past logging\\n")
os.write(2, b"after logging\\n")
"""


def write(home: Path, log_bytes: int) -> Path:
    log = home / "run" / LOG_NAME
    log.parent.mkdir(parents=True)
    with log.open("ab") as output:
        subprocess.run([sys.executable, "-c", WRITER, home, str(log_bytes)], stdout=output, stderr=output, check=True)
    return log


def test_the_log_rotates_and_all_output_follows(tmp_path: Path) -> None:
    log = write(tmp_path, LOG_BYTES)
    files = sorted(log.parent.glob(f"{LOG_NAME}*"), reverse=True)
    assert [path.name for path in files] == [f"{LOG_NAME}.3", f"{LOG_NAME}.2", f"{LOG_NAME}.1", LOG_NAME]
    assert all(path.stat().st_size <= LOG_BYTES + 100 for path in files)
    text = "".join(path.read_text() for path in files)
    numbers = [int(line.split('"line ')[1].split('"')[0]) for line in text.splitlines() if '"line ' in line]
    assert numbers == list(range(100 - len(numbers), 100))
    assert log.read_text().endswith("past logging\nafter logging\n")


def test_without_a_size_the_log_only_grows(tmp_path: Path) -> None:
    log = write(tmp_path, 0)
    assert len(log.read_text().splitlines()) == 102
    assert [path.name for path in log.parent.iterdir()] == [LOG_NAME]


def test_output_to_another_file_is_left_alone(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    assert runner_log(settings) is None
    settings.run_dir.mkdir()
    (settings.run_dir / LOG_NAME).touch()
    assert runner_log(settings) is None
