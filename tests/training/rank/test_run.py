"""The next window: how many samples it takes."""

from pathlib import Path

import pytest
from transformers import LlamaConfig

from onyx.memory.devices.device import Device
from onyx.memory.planner import plan
from onyx.memory.planning.timing import Timing, device_timing_key, store_timing
from onyx.memory.recipe import Recipe
from onyx.training.rank import run as pace
from onyx.training.rank.run import Throughput
from tests.planner_cache import KNOWN_CPU
from tests.training.job import Job, inline, run_inline

GROWING = {"accumulation_warmup": 6, "accumulation_scheduler": "linear"}


def sizes(job: Job) -> list[int]:
    """Samples of each update."""
    taken = [int(row.split(",")[2]) for row in job.rows()]
    return [now - before for before, now in zip([0, *taken], taken, strict=False)]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("linear", [4, 8, 8, 8, 12, 16, 16, 8]),
        ("cosine", [4, 4, 8, 8, 12, 16, 16, 12]),
        ("step", [4, 4, 8, 8, 16, 16, 16, 8]),
        (None, [16, 16, 16, 16, 16]),
    ],
)
def test_the_window_grows_from_one_micro_batch_to_n(job: Job, shape: str | None, expected: list[int]) -> None:
    """16 samples in 4 steps: a step is 4 samples."""
    job.window, job.accumulation_steps = 16, 4
    job.training = {"epochs": 1, "accumulation_warmup": 6, "accumulation_scheduler": shape}
    run_inline(job)
    assert sizes(job) == expected


def test_a_skipped_update_does_not_advance_it_and_no_window_is_larger_than_asked_for(job: Job) -> None:
    job.window, job.accumulation_steps, job.training = 10, 4, GROWING
    with inline(job) as run:
        run.progress.windows = 5
        assert run.next_window().samples == 3
        run.progress.update = 4
        assert run.next_window().samples == 9
        run.progress.update = 6
        assert run.next_window().samples == 10


def test_it_grows_to_an_n_that_was_changed_on_the_way(job: Job) -> None:
    job.window, job.accumulation_steps, job.training = 16, 4, {"epochs": 1, **GROWING}
    job.number = 1
    job.write_attempt()
    (job.attempt_dir / "control.json").write_text('{"seq": 1, "accumulation_steps": 2}')
    job.number = 0
    run_inline(job)
    assert sizes(job)[:9] == [4, 4, 4, 8, 8, 8, 8, 8, 8]


GB = 2**30


def test_waiting_for_others_and_short_work_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("onyx.training.rank.run.time.monotonic", lambda: now)
    mine = Throughput()
    mine.end()  # a warm-up
    assert (mine.tokens, mine.seconds) == (0, 0.0)
    mine.begin(1000)
    now += pace.ENOUGH_SECONDS / 2
    mine.end()
    now += 1000.0  # at the vote
    assert mine.seconds_per_token is None
    mine.begin(1000)
    now += pace.ENOUGH_SECONDS / 2
    mine.end()
    assert mine.seconds_per_token == pytest.approx(pace.ENOUGH_SECONDS / 2000)


@pytest.mark.parametrize(("slower", "shares"), [(2.0, [20, 10]), (1.1, [15, 15])])
def test_a_slower_device_gets_its_share_by_what_was_measured(
    slower: float, shares: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they are about alike, shares stay equal: a few per cent are the machine's noise."""
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
