"""A full disk: a clear failure, and the last good checkpoint intact."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from onyx.training.contract.attempt import Exit
from onyx.training.contract.errors import is_disk_full
from onyx.training.state.checkpoint import complete
from tests.training.job import Job, same


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """4 MB: two checkpoints and a snapshot fit, and not a third checkpoint beside them."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fails_clearly(job: Job) -> None:
    assert job.run() == [Exit.USER_ERROR]
    error = (job.attempt_dir / "error.json").read_text()
    assert "disk_full" in error
    assert "its last checkpoint is intact" in error
    assert list(job.dir.rglob(".*")) == []


def test_on_a_small_disk(job: Job, small_disk: Path) -> None:
    quiet = job.twin("quiet").finish()
    job.home = small_disk
    fails_clearly(job)
    assert [path.name for path in complete(job.dir / "checkpoints")] == ["update-00000005", "update-00000010"]
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    job.finish()
    assert "resumed from update 10" in [event.message for event in job.events]
    assert same(job.weights(), quiet.weights())


def test_where_files_may_not_grow(job: Job) -> None:
    """Like a disk quota, but without root."""
    job.limits = {"RLIMIT_FSIZE": 300_000}
    fails_clearly(job)
    assert complete(job.dir / "checkpoints") == []


def test_on_a_nearly_full_disk_checkpoints_wait_and_training_goes_on(job: Job) -> None:
    quiet = job.twin("quiet").finish()
    job.free_disk = 2**62
    job.finish()
    saved = [event.data["update"] for event in job.events if event.kind == "checkpoint"]
    left_out = [event for event in job.events if event.level == "warn"]
    last = max(event.data["update"] for event in quiet.events if event.kind == "checkpoint")
    assert saved == [last]  # the last one is always tried
    assert [event.data["update"] for event in left_out] == list(range(5, last + 1, 5))
    assert "no checkpoint at update 5, the last one stays" in left_out[0].message
    assert same(job.weights(), quiet.weights())


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(28, "No space left on device"), True),
        (OSError(2, "No such file"), False),
        (RuntimeError("I/O error: No space left on device (os error 28)"), True),
        (RuntimeError("something else"), False),
    ],
)
def test_errors_of_a_full_disk_are_recognised(error: Exception, full: bool) -> None:
    assert is_disk_full(error) == full
