import math

from onyx.finite import finite


def test_what_json_cannot_hold_becomes_null_at_every_depth() -> None:
    value = {1: math.nan, "deep": [math.inf, (-math.inf, 1.5)], "text": "NaN", "none": None, "yes": True}
    assert finite(value) == {"1": None, "deep": [None, [None, 1.5]], "text": "NaN", "none": None, "yes": True}
