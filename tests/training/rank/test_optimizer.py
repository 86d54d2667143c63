import pytest

from onyx.training.contract.spec import TrainingSpec
from onyx.training.rank.optimizer import learning_rate


def rates(total: int = 100, size: int = 10, **spec: object) -> list[float]:
    training = TrainingSpec.model_validate(spec)
    return [
        learning_rate(training, 1.0, position=position, size=size, total=total) for position in range(0, total, size)
    ]


def test_constant() -> None:
    assert rates(schedule="constant") == [1.0] * 10


def test_linear_falls_from_full_to_nearly_nothing() -> None:
    assert rates(schedule="linear") == pytest.approx([1 - 0.1 * step for step in range(10)])


def test_cosine() -> None:
    found = rates(schedule="cosine")
    assert found[0] == 1.0
    assert found[5] == pytest.approx(0.5)
    assert found == sorted(found, reverse=True)
    assert found[-1] > 0


def test_warm_up_rises_in_samples_and_wastes_no_update() -> None:
    found = rates(schedule="linear", warmup_fraction=0.2)
    assert found[:3] == pytest.approx([0.5, 1.0, 1.0])
    assert found[-1] == pytest.approx(1 - 70 / 80)


def test_another_window_is_the_same_curve() -> None:
    small, large = rates(size=5, schedule="cosine"), rates(size=10, schedule="cosine")
    assert small[::2] == large


def test_the_last_partial_window_stays_above_zero() -> None:
    assert learning_rate(TrainingSpec(), 1.0, position=99, size=1, total=100) > 0
