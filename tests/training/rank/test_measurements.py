"""What a rank measured stands beside what the plan said, and later plans know it."""

from pathlib import Path

import pytest
import torch

from onyx.memory.planning.timing import stored_timing
from onyx.training.contract.attempt import Attempt, Result
from onyx.training.rank.measurements import card_overhead
from tests.training.job import Job, run_inline

PART = {"name": "CPU", "expected_peak": 40 * 2**20, "low": 30 * 2**20, "timing_key": "a-key"}


def test_a_job_says_what_it_measured(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONYX_HOME", str(tmp_path / "home"))
    made = job.attempt

    def planned() -> Attempt:
        return made().model_copy(update={"plan": {"accumulation_steps": 2, "devices": [PART]}})

    monkeypatch.setattr(job, "attempt", planned)
    run_inline(job)
    (event,) = [each for each in job.events if each.kind == "probe"]
    assert event.data["predicted_bytes"] == PART["expected_peak"]
    assert event.data["measured_bytes"] > 2**20
    assert 0 < event.data["seconds_per_update"] < event.data["seconds_total"]
    timing = stored_timing("a-key")
    assert timing is not None
    assert timing.per_micro_batch + timing.per_token > 0
    result = Result.model_validate_json((job.attempt_dir / "result.json").read_text())
    (score,) = result.memory
    assert score["error"] == pytest.approx(score["predicted"] / score["measured"] - 1)
    assert "predicted bytes" in (job.dir / "model" / "README.md").read_text()


def test_a_plan_without_devices_has_no_score(job: Job) -> None:
    job.finish()
    result = Result.model_validate_json((job.attempt_dir / "result.json").read_text())
    assert result.memory == []
    assert Result.model_validate(result.model_dump(exclude={"predicted_bytes"})) == result


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_overhead_of_a_card() -> None:
    held = torch.ones(2**22, device="cuda")
    found = card_overhead(held.device)
    assert found.measured
    assert found.fixed > 0
    assert 1.0 <= found.slack <= found.slack_high
