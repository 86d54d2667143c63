"""An overhead is a line: a fixed part, and a part of the live bytes."""

from dataclasses import replace

import pytest

from onyx.memory.footprint.overhead import Overhead


def test_an_overhead_is_a_line_that_can_be_read_backwards() -> None:
    overhead = Overhead(fixed=100, slack=1.25, fixed_high=200, slack_high=1.5, measured=True)
    assert overhead.expected(400) == 600
    assert overhead.cautious(400) == 125 + 525
    assert overhead.live(650) == pytest.approx(400)
    assert overhead.high(400) == 800
    assert Overhead.from_json(overhead.to_json()) == overhead
    assert replace(overhead, fixed=0).expected(4) == 5
    with pytest.raises(ValueError, match="not a stored overhead"):
        Overhead.from_json('{"fixed": 1}')
