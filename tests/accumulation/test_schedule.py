import math

import pytest

from onyx.accumulation.schedule import Constant, Progressive, doubling, warmup


def lengths(shape: str | None, steps: int = 8, updates: int = 8, count: int = 10) -> list[int]:
    schedule = warmup(steps, updates, shape)
    return [schedule.length(update) for update in range(count)]


def test_linear() -> None:
    assert lengths("linear") == [round(1 + 7 * u / 8) for u in range(8)] + [8, 8]


def test_cosine() -> None:
    expected = [round(1 + 7 * (1 - math.cos(math.pi * u / 8)) / 2) for u in range(8)]
    assert lengths("cosine") == [*expected, 8, 8]


def test_step_doubles_in_equal_parts() -> None:
    assert lengths("step") == [1, 1, 2, 2, 4, 4, 8, 8, 8, 8]


def test_none_is_constant() -> None:
    assert lengths(None) == [8] * 10
    assert warmup(3, 0, "linear") == Constant(3)


def test_every_warmup_starts_at_one_and_ends_at_n() -> None:
    for shape in ("linear", "cosine", "step"):
        for steps in range(1, 17):
            found = [warmup(steps, 20, shape).length(update) for update in range(25)]
            assert found[0] == 1
            assert found[20:] == [steps] * 5
            assert found == sorted(found)


def test_progressive_takes_one_update_per_stage_and_stays_at_the_last() -> None:
    assert [Progressive([2, 4, 8, 16]).length(update) for update in range(6)] == [2, 4, 8, 16, 16, 16]


def test_doubling_ends_at_n() -> None:
    assert doubling(8) == [1, 2, 4, 8]
    assert doubling(6) == [1, 2, 4, 6]
    assert doubling(1) == [1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 4, "linear"), "accumulation_steps must be >= 1"),
        ((4, -1, "linear"), "warmup_steps must be >= 0"),
        ((4, 4, "square"), "must be one of linear, cosine, step"),
    ],
)
def test_invalid_arguments_are_refused(arguments: tuple[int, int, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        warmup(*arguments)
