"""The process that sends numbers to W&B, with W&B's own library, offline."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onyx.jobs.notify.tracker_process import ATTEMPT_OVER, config_of
from onyx.training.contract.attempt import Attempt, attempt_file
from tests.jobs.attempt_files import SECRET_TEXT, say_updates, tracked_attempt

BLOCK = 32_768
HEADER = 7


def track(attempt: Attempt) -> None:
    """Run a tracker from start to end, after the end of its attempt."""
    (attempt.attempt_dir / ATTEMPT_OVER).touch()
    command = [
        "onyx.jobs.launch.child",
        "onyx-tracker",
        "0",
        "onyx.jobs.notify.tracker_process:main",
        str(attempt_file(attempt)),
        "offline",
    ]
    places = {f"WANDB_{name}_DIR": str(attempt.job_dir / "wandb" / name) for name in ("CACHE", "DATA", "CONFIG")}
    subprocess.run([sys.executable, "-m", *command], check=True, timeout=600, env=os.environ | places)


def runs(job_dir: Path) -> list[Path]:
    """The runs that W&B would sync, oldest first."""
    return sorted(job_dir.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns)


def records(path: Path) -> Iterator[Any]:
    """W&B's records: after a short header, a log in blocks, whose pieces are first, middle, last or all of a record."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = path.read_bytes(), HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):
            yield Record.FromString(whole)
            whole = b""


def history(path: Path) -> dict[int, dict[str, float]]:
    """Numbers by step."""
    rows = [record.history for record in records(path) if record.WhichOneof("record_type") == "history"]
    read = [{item.key or item.nested_key[0]: json.loads(item.value_json) for item in row.item} for row in rows]
    return {row["_step"]: {name: value for name, value in row.items() if name[0] != "_"} for row in read}


def test_a_resumed_attempt_continues_the_run_and_sends_no_update_twice(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    job_dir = tmp_path / "ftjob-1"
    first = tracked_attempt(job_dir, tags=["tiny"], name="night")
    say_updates(first, range(1, 4))
    track(first)
    second = tracked_attempt(job_dir, 2)
    say_updates(second, range(3, 6))  # the third again: it was resumed from the second
    track(second)
    one, two = runs(job_dir)
    assert {step: row["loss"] for step, row in history(one).items()} == {1: 1.0, 2: 1 / 2, 3: 1 / 3}
    assert history(one)[3] == {"loss": 1 / 3, "learning_rate": 0.1, "evaluation_loss": 0.5}
    assert list(history(two)) == [4, 5]
    assert {path.name for path in (one, two)} == {"run-ftjob-1.wandb"}
    (run,) = [record.run for record in records(one) if record.WhichOneof("record_type") == "run"]
    assert (run.run_id, run.display_name, run.project, list(run.tags)) == ("ftjob-1", "night", "harbour", ["tiny"])


def test_neither_data_nor_the_host_is_sent(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    attempt = tracked_attempt(tmp_path / "ftjob-1")
    say_updates(attempt, range(1, 3))
    track(attempt)
    (sent,) = runs(attempt.job_dir)
    files = [path.read_bytes() for path in sent.parent.glob("files/**/*") if path.is_file()]
    sent_bytes = b"".join([sent.read_bytes(), *files])
    assert b"learning_rate" in sent_bytes
    for private in (SECRET_TEXT, str(attempt.job_dir), sys.prefix, "pydantic"):
        assert private.encode() not in sent_bytes, private
    (run,) = [record.run for record in records(sent) if record.WhichOneof("record_type") == "run"]
    assert run.host == "onyx"


def test_the_config_says_how_the_job_is_trained(tmp_path: Path) -> None:
    config = config_of(tracked_attempt(tmp_path / "ftjob-1").spec)
    assert {"model": "onyx/tiny", "window": 32, "max_length": 512, "epochs": 3}.items() <= config.items()
    assert not {"data", "labels", "webhook_url", "wandb"} & config.keys()
