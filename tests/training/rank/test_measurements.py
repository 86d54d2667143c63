"""What a rank measured is reported beside the plan's prediction and stored for later plans."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from onyx.memory.devices.device import Device
from onyx.memory.planner import plan
from onyx.memory.planning.timing import Timing, device_timing_key, store_timing, stored_timing
from onyx.memory.recipe import Recipe
from onyx.training.contract.attempt import Attempt, Result
from onyx.training.rank.measurements import card_overhead
from tests.planner_cache import KNOWN_CPU
from tests.training.job import Job, run_inline

GB = 2**30

PART = {"name": "CPU", "expected_peak": 40 * 2**20, "low": 30 * 2**20, "timing_key": "a-key"}


def test_a_job_reports_what_it_measured(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize(("slower", "shares"), [(2.0, [20, 10]), (1.1, [15, 15])])
def test_a_slower_device_gets_its_share_by_what_was_measured(
    slower: float, shares: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices of about the same speed keep equal shares: a few per cent are noise."""
    monkeypatch.setenv("ONYX_HOME", str(tmp_path))
    monkeypatch.setattr("onyx.memory.planning.device_fit.overhead_of", lambda _: KNOWN_CPU)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=64
    )
    recipe = Recipe(model=config, max_length=32)
    slices = [Device(kind="cpu", index=i, name="CPU", memory_total=GB, memory_free=GB, cores=1) for i in (0, 1)]
    first = plan(recipe, effective_batch=30, devices=slices)
    assert [each.share for each in first.devices] == [15, 15]
    for part, per_token in zip(first.devices, (0.001, 0.001 * slower), strict=True):
        timing = Timing(per_micro_batch=0.0, per_token=per_token, per_update=0.0)
        store_timing(device_timing_key(part.timing_key or "", part.label, None), timing)
    again = plan(recipe, effective_batch=30, devices=slices)
    assert [each.share for each in again.devices] == shares
