"""In a process of its own: what is looked at are its standard output and error."""

import subprocess
import sys
from pathlib import Path

from onyx.jobs.runner_log import NAME, runner_log
from onyx.settings import Settings

MOST = 2000

WRITER = """
import logging, os, sys
from pathlib import Path
from onyx import logs
from onyx.jobs.runner_log import runner_log
from onyx.settings import Settings

settings = Settings(home=Path(sys.argv[1]), log_bytes=int(sys.argv[2]), log_files=3)
handler = runner_log(settings)
assert handler is not None
logs.configure(settings, handler=handler)
for number in range(100):
    logging.getLogger("onyx").info("line %d", number)
os.write(1, b"past logging\\n")
os.write(2, b"last words\\n")
"""


def write(home: Path, most: int) -> Path:
    log = home / "run" / NAME
    log.parent.mkdir(parents=True)
    with log.open("ab") as output:
        subprocess.run([sys.executable, "-c", WRITER, home, str(most)], stdout=output, stderr=output, check=True)
    return log


def test_it_begins_anew_and_all_output_follows(tmp_path: Path) -> None:
    log = write(tmp_path, MOST)
    files = sorted(log.parent.glob(f"{NAME}*"), reverse=True)
    assert [path.name for path in files] == [f"{NAME}.3", f"{NAME}.2", f"{NAME}.1", NAME]
    assert all(path.stat().st_size <= MOST + 100 for path in files)
    text = "".join(path.read_text() for path in files)
    numbers = [int(line.split('"line ')[1].split('"')[0]) for line in text.splitlines() if '"line ' in line]
    assert numbers == list(range(100 - len(numbers), 100))
    assert log.read_text().endswith("past logging\nlast words\n")


def test_without_a_size_it_only_grows(tmp_path: Path) -> None:
    log = write(tmp_path, 0)
    assert len(log.read_text().splitlines()) == 102
    assert [path.name for path in log.parent.iterdir()] == [NAME]


def test_output_that_goes_elsewhere_is_left_alone(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    assert runner_log(settings) is None
    settings.run_dir.mkdir()
    (settings.run_dir / NAME).touch()
    assert runner_log(settings) is None
