import json
from collections.abc import Callable
from typing import Any

import pytest
from torch.optim import SGD

from onyx.accumulation.system import AccumulationState
from onyx.accumulation.system.state import HISTORY
from onyx.accumulation.window import Window
from tests.accumulation.system.common import Slope, accumulator_of, applied


def test_a_fresh_state_has_no_window() -> None:
    state = AccumulationState(micro_batch_size=8)
    assert (state.accumulation_step, state.accumulated_loss) == (0, 0.0)


def test_histories_are_bounded() -> None:
    model = Slope()
    accumulator = accumulator_of(model, SGD(model.parameters(), lr=0.0), accumulation_steps=1, logging_frequency=1)
    applied(model, accumulator, [1.0] * (HISTORY + 10))
    assert len(accumulator.state.gradient_norms) == HISTORY
    assert len(accumulator.state.memory_usage) == HISTORY


def full() -> AccumulationState:
    state = AccumulationState(micro_batch_size=8, total_steps=9, optimizer_steps=2, nan_detected=True)
    state.window = Window(length=4, count=1, taken=2.0, losses=0.1, divisor=8.0, weighted=True)
    state.gradient_norms.extend([0.1, 0.2])
    return state


def test_a_state_survives_json() -> None:
    saved = json.loads(json.dumps(full().state_dict()))
    assert AccumulationState.from_state_dict(saved) == full()


SPOILED: list[Callable[[dict[str, Any]], Any]] = [
    lambda saved: saved.pop("total_steps"),
    lambda saved: saved.update(more=1),
    lambda saved: saved.update(total_steps=-1),
    lambda saved: saved.update(micro_batch_size=0),
    lambda saved: saved.update(nan_detected="no"),
    lambda saved: saved.update(gradient_norms=0.5),
    lambda saved: saved.update(gradient_norms=["x"]),
    lambda saved: saved.update(expected_updates=0),
    lambda saved: saved.update(window=[]),
    lambda saved: saved["window"].pop("taken"),
    lambda saved: saved["window"].update(count=5),
    lambda saved: saved["window"].update(taken="2"),
    lambda saved: saved["window"].update(weighted=1),
]


@pytest.mark.parametrize("spoil", SPOILED)
def test_a_spoiled_state_is_refused(spoil: Callable[[dict[str, Any]], Any]) -> None:
    saved = full().state_dict()
    spoil(saved)
    with pytest.raises(ValueError, match=r"keys|must be"):
        AccumulationState.from_state_dict(saved)
