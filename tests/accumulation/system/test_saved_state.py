import copy
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import Module
from torch.optim import AdamW, Optimizer

from onyx.accumulation.loss_scaling import DynamicLossScaler
from onyx.accumulation.system import GradientAccumulator
from onyx.accumulation.system.statefile import write_state
from tests.accumulation.exact import Batch, flat, make_batches, make_model, mean_loss
from tests.accumulation.system.common import Dial, accumulator_of, config_of


def fresh(model: Module, scaler: Any = None, **changes: Any) -> tuple[Module, Optimizer, GradientAccumulator]:
    model = copy.deepcopy(model)
    optimizer = AdamW(model.parameters(), lr=0.01)
    # With a log line per micro-batch, memory is read for every window: the readings can be compared too.
    accumulator = GradientAccumulator(config_of(logging_frequency=1, **changes), gauge=Dial(0.5))
    accumulator.setup_training(model, optimizer, nn.CrossEntropyLoss(), scaler=scaler)
    return model, optimizer, accumulator


def feed(model: Module, accumulator: GradientAccumulator, batches: list[Batch]) -> None:
    for batch in batches:
        accumulator.accumulate_gradients(mean_loss(model, batch), weight=len(batch[0]))


def continued(tmp_path: Path, cut: int, make_scaler: Callable[[], Any], **changes: Any) -> None:
    """Stop after `cut` micro-batches, go on in a fresh accumulator: the same bits as without a stop."""
    batches = make_batches([3, 5, 2, 4, 4, 1, 6, 3, 3, 2])
    start = make_model()
    whole, _, straight = fresh(start, make_scaler(), **changes)
    feed(whole, straight, batches)
    straight.flush()

    model, optimizer, accumulator = fresh(start, make_scaler(), **changes)
    feed(model, accumulator, batches[:cut])
    accumulator.save_accumulation_state(tmp_path / "state.safetensors")
    again, other, resumed = fresh(model, make_scaler(), **changes)
    other.load_state_dict(optimizer.state_dict())
    resumed.load_accumulation_state(tmp_path / "state.safetensors")
    assert resumed.get_accumulation_stats() == accumulator.get_accumulation_stats()
    feed(again, resumed, batches[cut:])
    resumed.flush()
    assert torch.equal(flat(again), flat(whole))
    assert resumed.get_accumulation_stats() == straight.get_accumulation_stats()
    assert resumed.state == straight.state
    assert resumed.noise.state_dict() == straight.noise.state_dict()
    assert bool(resumed.noise.windows) == (changes.get("mode") == "adaptive")


@pytest.mark.parametrize("cut", [0, 1, 4, 6, 9, 10])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"loss_scaling": False},
        {"mode": "progressive", "accumulation_schedule": [1, 3, 4]},
        {"mode": "adaptive", "adaptive_scaling": True, "effective_batch_size": 4, "target_batch_size": 16},
    ],
)
def test_a_window_continues_to_the_bit(tmp_path: Path, cut: int, changes: dict[str, Any]) -> None:
    continued(tmp_path, cut, lambda: None, **changes)


@pytest.mark.parametrize("make_scaler", [lambda: torch.amp.GradScaler("cpu"), DynamicLossScaler])
@pytest.mark.parametrize("cut", [1, 9, 10])
def test_a_scaled_window_continues_to_the_bit(tmp_path: Path, cut: int, make_scaler: Callable[[], Any]) -> None:
    """Cut 9 leaves one micro-batch, and cut 10 leaves none: the loaded window is flushed as it is."""
    continued(tmp_path, cut, make_scaler, mode="adaptive", adaptive_scaling=True)


@given(losses=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=3))
@settings(max_examples=10)
def test_numbers_come_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, losses: list[float]) -> None:
    path = tmp_path_factory.mktemp("state") / "state"
    model, _, accumulator = fresh(make_model())
    for loss in losses:
        accumulator.accumulate_gradients(mean_loss(model, make_batches([2])[0]) * 0 + loss)
    accumulator.save_accumulation_state(path)
    _, _, other = fresh(model)
    other.load_accumulation_state(path)
    assert other.state == accumulator.state


def test_the_file_is_safetensors_with_json_metadata(tmp_path: Path) -> None:
    model, _, accumulator = fresh(make_model())
    feed(model, accumulator, make_batches([2]))
    path = tmp_path / "deep" / "state.safetensors"
    accumulator.save_accumulation_state(str(path))
    with safe_open(path, framework="pt") as file:
        metadata = json.loads(file.metadata()["onyx_state"])
    assert metadata["state"]["window"]["count"] == 1
    assert metadata["config"]["mode"] == "standard"
    assert len(load_file(path)) == len(list(model.parameters()))
    assert [entry.name for entry in path.parent.iterdir()] == ["state.safetensors"]


def test_the_config_stays_the_accumulators_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="onyx")
    model, _, accumulator = fresh(make_model(), accumulation_steps=4)
    feed(model, accumulator, make_batches([2]))
    accumulator.save_accumulation_state(tmp_path / "state")
    model, _, other = fresh(model, accumulation_steps=2, clipping_norm=0.5)
    other.load_accumulation_state(tmp_path / "state")
    assert other.config.accumulation_steps == 2
    assert other.window_length == 4  # the open window keeps the length that it began with
    assert "accumulation_steps, clipping_norm" in caplog.text


def test_loading_drops_an_open_window(tmp_path: Path) -> None:
    model, _, accumulator = fresh(make_model())
    accumulator.save_accumulation_state(tmp_path / "state")
    feed(model, accumulator, make_batches([2]))
    accumulator.load_accumulation_state(tmp_path / "state")
    assert accumulator.state.window is None
    assert all(p.grad is None for p in model.parameters())


def damaged(path: Path, model: Module) -> dict[str, Callable[[], Any]]:
    """Ways to spoil the file at `path`."""
    whole = path.read_bytes()
    foreign = {"weight": torch.ones(2)}
    return {
        "missing": path.unlink,
        "empty": lambda: path.write_bytes(b""),
        "text": lambda: path.write_text("not a tensor in sight"),
        "truncated": lambda: path.write_bytes(whole[: len(whole) // 2]),
        "pickle": lambda: torch.save({"state": 1}, path),
        "another's safetensors": lambda: save_file(foreign, path),
        "not JSON": lambda: save_file(foreign, path, metadata={"onyx_state": "{"}),
        "a list": lambda: save_file(foreign, path, metadata={"onyx_state": "[1]"}),
        "lost tensors": lambda: save_file(foreign, path, metadata={"onyx_state": '{"a": {"__tensor__": "b"}}'}),
        "another state": lambda: write_state(path, {"format": "something else"}),
    }


@pytest.mark.parametrize("how", list(damaged(Path(__file__), nn.Linear(1, 1))))
def test_a_damaged_or_foreign_file_is_refused_and_changes_nothing(tmp_path: Path, how: str) -> None:
    path = tmp_path / "state"
    model, _, accumulator = fresh(make_model())
    accumulator.save_accumulation_state(path)
    feed(model, accumulator, make_batches([2]))
    damaged(path, model)[how]()
    with pytest.raises(ValueError, match=r"state"):
        accumulator.load_accumulation_state(path)
    assert accumulator.state.accumulation_step == 1


SPOILED: list[Callable[[dict[str, Any]], Any]] = [
    lambda saved: saved.pop("noise"),
    lambda saved: saved.update(format="onyx/0"),
    lambda saved: saved.update(config=None),
    lambda saved: saved.update(noise={"squared": 1.0}),
    lambda saved: saved["noise"].update(squared="1"),
    lambda saved: saved.update(meter={"norms": {}}),
    lambda saved: saved.update(meter={"norms": {"sum": 0.0, "count": 2}, "weights": [1.0]}),
    lambda saved: saved.update(gradients=[]),
    lambda saved: saved["gradients"].update(another=torch.ones(1)),
    lambda saved: saved["gradients"].update({"0.bias": torch.ones(1)}),
    lambda saved: saved["gradients"].update({"0.bias": "ones"}),
    lambda saved: saved.update(scaler={"scale": 2.0}),
]


@pytest.mark.parametrize("spoil", SPOILED)
def test_a_spoiled_state_dict_is_refused_and_changes_nothing(spoil: Callable[[dict[str, Any]], Any]) -> None:
    model, _, accumulator = fresh(make_model())
    feed(model, accumulator, make_batches([2, 2]))
    saved = accumulator.state_dict()
    spoil(saved)
    with pytest.raises(ValueError, match=r"saved|must be"):
        accumulator.load_state_dict(saved)
    assert accumulator.state.accumulation_step == 2


def test_a_scaled_window_is_not_continued_without_a_scaler() -> None:
    model, _, scaled = fresh(make_model(), torch.amp.GradScaler("cpu"))
    feed(model, scaled, make_batches([2]))
    with pytest.raises(ValueError, match="with a loss scaler"):
        accumulator_of(make_model()).load_state_dict(scaled.state_dict())
