"""A device's own pace, and the shares that later plans give by it."""

from pathlib import Path

import pytest
from transformers import LlamaConfig

from onyx.memory.device import Device
from onyx.memory.planner import plan
from onyx.memory.recipe import Recipe
from onyx.memory.timing import Timing
from onyx.memory.timings import own_key, store_timing
from onyx.training import pace
from onyx.training.pace import Pace
from tests.measured import KNOWN_CPU

GB = 2**30


def test_waiting_for_others_and_short_work_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("onyx.training.pace.time.monotonic", lambda: now)
    mine = Pace()
    mine.end()  # a warm-up
    assert (mine.tokens, mine.seconds) == (0, 0.0)
    mine.begin(1000)
    now += pace.ENOUGH_SECONDS / 2
    mine.end()
    now += 1000.0  # at the vote
    assert mine.per_token is None
    mine.begin(1000)
    now += pace.ENOUGH_SECONDS / 2
    mine.end()
    assert mine.per_token == pytest.approx(pace.ENOUGH_SECONDS / 2000)


@pytest.mark.parametrize(("slower", "shares"), [(2.0, [20, 10]), (1.1, [15, 15])])
def test_a_slower_device_gets_its_share_by_what_was_measured(
    slower: float, shares: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they are about alike, shares stay equal: a few per cent are the machine's noise."""
    monkeypatch.setenv("ONYX_HOME", str(tmp_path))
    monkeypatch.setattr("onyx.memory.fitting.overhead_of", lambda _: KNOWN_CPU)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=64
    )
    recipe = Recipe(model=config, max_length=32)
    slices = [Device(kind="cpu", index=i, name="CPU", memory_total=GB, memory_free=GB, cores=1) for i in (0, 1)]
    first = plan(recipe, effective_batch=30, devices=slices)
    assert [each.share for each in first.devices] == [15, 15]
    for part, per_token in zip(first.devices, (0.001, 0.001 * slower), strict=True):
        timing = Timing(per_micro_batch=0.0, per_token=per_token, per_update=0.0)
        store_timing(own_key(part.timing_key or "", part.label, None), timing)
    again = plan(recipe, effective_batch=30, devices=slices)
    assert [each.share for each in again.devices] == shares
