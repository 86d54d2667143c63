import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onyx.api.openai import job_request


@pytest.mark.parametrize(
    ("samples", "epochs", "batch"),
    [(1, 25, 1), (3, 25, 3), (10, 10, 4), (40, 3, 4), (1000, 3, 8), (6400, 3, 64), (10_000, 2, 64), (10**6, 1, 64)],
)
def test_automatic_values_follow_the_documented_rules(samples: int, epochs: int, batch: int) -> None:
    assert (job_request.epochs_for(samples), job_request.batch_for(samples)) == (epochs, batch)


@given(st.integers(1, 10**8))
def test_automatic_values_stay_within_openais_ranges(samples: int) -> None:
    assert 1 <= job_request.epochs_for(samples) <= 50
    assert 1 <= job_request.batch_for(samples) <= min(256, samples)


def test_the_base_learning_rate_depends_on_the_method() -> None:
    assert job_request.learning_rate_for(lora=False, dpo=False) == 5e-5
    assert job_request.learning_rate_for(lora=True, dpo=False) == 2e-4
    assert job_request.learning_rate_for(lora=False, dpo=True) == pytest.approx(5e-6)


@pytest.mark.parametrize(("text", "lines"), [(b"a\nb\n", 2), (b"a\nb", 2), (b"", 1)])
def test_lines_are_counted(tmp_path: Path, text: bytes, lines: int) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(text)
    assert asyncio.run(job_request.count_samples(path)) == lines
