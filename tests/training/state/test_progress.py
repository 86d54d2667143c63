"""Counters and means of a checkpoint."""

import json

from tests.training.job import Job, run_inline


def test_state_is_plain_json(job: Job) -> None:
    run_inline(job)
    state = json.loads((job.dir / "checkpoints" / "update-00000020" / "state.json").read_text())
    assert state["update"] == 20
    assert state["samples"] == 160
    assert state["steering"]["budgets"] == [128]
