import subprocess
import sys
from pathlib import Path

from onyx.jobs.process_identity import this_process
from onyx.jobs.runner import client_presence as companions

JOIN = (
    "import sys; from pathlib import Path; from onyx.jobs.runner.client_presence import join; join(Path(sys.argv[1])); "
)


def test_living_and_dead(tmp_path: Path) -> None:
    assert companions.living(tmp_path) == []
    companions.join(tmp_path)
    companions.join(tmp_path)
    assert companions.living(tmp_path) == [this_process()]
    assert companions.others(tmp_path) == []
    command = [sys.executable, "-c", JOIN + "print(flush=True); sys.stdin.read()", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert [holder.pid for holder in companions.others(tmp_path)] == [other.pid]
    assert companions.others(tmp_path) == []
    assert len(list((tmp_path / "companions").iterdir())) == 1, "the dead leave no mark"


def test_marks_of_other_hosts_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "companions").mkdir()
    far, nonsense = tmp_path / "companions" / "far:boot:1:1", tmp_path / "companions" / "nonsense"
    far.touch()
    nonsense.touch()
    assert companions.living(tmp_path) == []
    assert far.exists()
    assert not nonsense.exists()
