from typing import Any

import pytest

from onyx.cli.job_summary import percent, progress_line, sparkline


def job(status: str = "running", **progress: Any) -> dict[str, Any]:
    return {"status": status, "progress": progress or None}


@pytest.mark.parametrize(
    ("values", "drawn"), [([], ""), ([1.0], "▁"), ([3.0, 2.0, 1.0], "█▅▁"), ([2.0, 2.0], "▁▁"), ([0.0, 7.0], "▁█")]
)
def test_a_sparkline(values: list[float], drawn: str) -> None:
    assert sparkline(values) == drawn


def test_a_sparkline_shows_the_last_values() -> None:
    assert sparkline([9.0] * 50 + [0.0, 1.0], width=2) == "▁█"


def test_percent() -> None:
    assert percent(job()) is None
    assert percent(job(update=5, total_updates=20)) == 25.0
    assert percent(job(update=5, total_updates=20, percent=26.5)) == 26.5
    assert percent(job("succeeded")) == 100.0


def test_the_progress_line_leaves_out_what_is_unknown() -> None:
    assert progress_line(job()) == ""
    full = job(
        update=5,
        total_updates=20,
        loss=1.25,
        tokens_per_second=812.4,
        memory_bytes=2**30,
        planned_bytes=2**31,
        seconds_left=75.0,
    )
    assert progress_line(full) == "25 %  update 5/20  loss 1.25  812 tokens/s  1.00 GiB of 2.00 GiB planned  1:15 left"
