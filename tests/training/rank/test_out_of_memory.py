import pytest
import torch

from onyx.training.contract.attempt import Share
from onyx.training.contract.spec import TrainingSpec
from onyx.training.rank.out_of_memory import (
    ThrashDetector,
    allocator_retries,
    does_not_fit,
    peak_bytes,
    smaller_budget,
    watch_memory,
)


@pytest.mark.parametrize(
    ("budget", "samples", "length", "smaller"),
    [
        (1024, 8, 128, 512),
        (1024, 5, 100, 250),  # half of what was tried
        (300, 1, 512, None),  # alone already
        (1024, 1, 512, 512),  # the last one before every sample runs alone
        (512, 1, 512, None),
        (7, 2, 3, 3),
    ],
)
def test_the_next_budget(budget: int, samples: int, length: int, smaller: int | None) -> None:
    assert smaller_budget(budget, samples=samples, length=length) == smaller


def test_budgets_end() -> None:
    budget: int | None = 10_000
    steps = 0
    while budget is not None:
        budget = smaller_budget(budget, samples=max(1, budget // 70), length=70)
        steps += 1
    assert steps < 12


def test_two_windows_with_retries_in_a_row_shrink() -> None:
    thrash = ThrashDetector()
    seen = [thrash.detect(retries) for retries in (3, 3, 4, 4, 5, 6, 7, 8, 8)]
    assert seen == [False, False, False, False, False, True, False, True, False]
    assert not ThrashDetector().detect(None)


def test_the_cpu_has_no_allocator_that_retries() -> None:
    assert allocator_retries(torch.device("cpu")) is None


def test_the_peak_on_the_cpu_is_counted_from_what_is_held() -> None:
    watch_memory(7 * 2**20)
    assert 7 * 2**20 <= peak_bytes(torch.device("cpu")) < 30 * 2**20


def test_the_refusal_says_what_to_change() -> None:
    share = Share(device="cpu:0", share=1, token_budget=8, memory_bytes=64 * 2**20)
    full = does_not_fit(512, share, TrainingSpec())
    assert full.code == "out_of_memory"
    assert "512 tokens does not fit on cpu:0 with 64 MB" in full.message
    assert "lora" in full.message
    assert "lora" not in does_not_fit(512, share, TrainingSpec(method="lora")).message
