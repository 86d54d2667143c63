import copy
import logging
import math
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from hypothesis import given, settings
from torch.optim import SGD, AdamW

from onyx.accumulation.engine import AccumulationStats, GradientAccumulator
from tests.accumulation.exact import (
    TOLERANCE,
    big_batch_weights,
    difference,
    dtypes,
    flat,
    make_batches,
    make_model,
    mean_loss,
    window_lengths,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Lightning warns when it is imported and when it runs
    import lightning as pl

lightning_warns = pytest.mark.filterwarnings("ignore")


class Trainer:
    """The two attributes that Onyx reads of a Lightning trainer."""

    def __init__(self, accumulate_grad_batches: int | dict[int, int], global_step: int = 0) -> None:
        self.accumulate_grad_batches = accumulate_grad_batches
        self.global_step = global_step


def run(accumulator: GradientAccumulator, model: torch.nn.Module, count: int, final: bool = True) -> list[bool]:
    return [
        accumulator.accumulate(mean_loss(model, batch), model, is_final_batch=final and index == count - 1)
        for index, batch in enumerate(make_batches([2] * count))
    ]


def test_it_steps_when_the_document_says() -> None:
    model = make_model()
    accumulator = GradientAccumulator(SGD(model.parameters()), accumulation_steps=4)
    assert [i for i, stepped in enumerate(run(accumulator, model, 10)) if stepped] == [3, 7, 9]
    assert (accumulator.total_steps, accumulator.optimizer_steps, accumulator.effective_step) == (10, 3, 3)


@given(steps=window_lengths, dtype=dtypes)
@settings(max_examples=30)
def test_it_is_the_big_batch_with_its_short_last_window(steps: int, dtype: torch.dtype) -> None:
    batches, model = make_batches([3] * 11, dtype), make_model(dtype)
    expected = big_batch_weights(model, batches, steps)
    accumulator = GradientAccumulator(SGD(model.parameters(), lr=0.1), steps, max_grad_norm=None)
    for index, batch in enumerate(batches):
        accumulator.accumulate(mean_loss(model, batch), model, is_final_batch=index == 10)
    assert difference(flat(model), expected) <= TOLERANCE[dtype]


def test_the_gradient_norm_does_not_depend_on_the_cut() -> None:
    norms = []
    batches = make_batches([4] * 8)
    for steps in (1, 2, 8):
        model = make_model()
        accumulator = GradientAccumulator(SGD(model.parameters(), lr=0.0), steps)
        for group in range(0, 8, 8 // steps):
            part = batches[group : group + 8 // steps]
            x, y = torch.cat([x for x, _ in part]), torch.cat([y for _, y in part])
            accumulator.accumulate(mean_loss(model, (x, y)), model)
        norms.append(accumulator.last_grad_norm)
    assert norms == pytest.approx([norms[0]] * 3, rel=1e-5)


def test_n_1_is_plain_training_to_the_bit() -> None:
    model = make_model()
    by_hand = copy.deepcopy(model)
    optimizer = AdamW(by_hand.parameters())
    for batch in make_batches([4] * 5):
        mean_loss(by_hand, batch).backward()
        torch.nn.utils.clip_grad_norm_(by_hand.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    accumulator = GradientAccumulator(AdamW(model.parameters()))
    assert [accumulator.accumulate(mean_loss(model, batch), model) for batch in make_batches([4] * 5)] == [True] * 5
    assert torch.equal(flat(model), flat(by_hand))


def test_one_backward_per_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    real: Any = torch.Tensor.backward

    def spy(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return real(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "backward", spy)
    model = make_model()
    run(GradientAccumulator(SGD(model.parameters()), 4), model, 6)
    assert calls == 6


def test_no_limit_never_clips(monkeypatch: pytest.MonkeyPatch) -> None:
    clip = MagicMock(side_effect=torch.nn.utils.clip_grad_norm_)
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", clip)
    model = make_model()
    run(GradientAccumulator(SGD(model.parameters()), 2, max_grad_norm=None), model, 4)
    clip.assert_not_called()
    run(GradientAccumulator(SGD(model.parameters()), 2, max_grad_norm=0.5), model, 4)
    assert clip.call_count == 2


def test_a_skipped_step_returns_false_and_is_counted_apart(caplog: pytest.LogCaptureFixture) -> None:
    model = make_model()
    accumulator = GradientAccumulator(SGD(model.parameters(), lr=0.1))
    batch = make_batches([2])[0]
    assert accumulator.accumulate(mean_loss(model, batch), model)
    norm, before = accumulator.last_grad_norm, flat(model)
    assert not accumulator.accumulate(mean_loss(model, batch) * math.nan, model)
    assert (accumulator.optimizer_steps, accumulator.skipped_steps, accumulator.last_grad_norm) == (1, 1, norm)
    assert torch.equal(flat(model), before)
    assert "update skipped" in caplog.text
    assert accumulator.accumulate(mean_loss(model, batch), model)


def test_an_enabled_scaler_changes_nothing_but_the_range() -> None:
    plain, scaled = make_model(), make_model()
    run(GradientAccumulator(SGD(plain.parameters(), lr=0.1), 4), plain, 10)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    run(GradientAccumulator(SGD(scaled.parameters(), lr=0.1), 4, scaler=scaler), scaled, 10)
    assert difference(flat(scaled), flat(plain)) < 1e-6


def test_a_scaler_is_stepped_and_updated_also_when_disabled() -> None:
    for enabled in (True, False):
        model = make_model()
        scaler = MagicMock(wraps=torch.amp.GradScaler("cpu", enabled=enabled))
        run(GradientAccumulator(SGD(model.parameters()), 2, scaler=scaler), model, 4)
        assert scaler.scale.call_count == 4
        assert scaler.unscale_.call_count == scaler.step.call_count == scaler.update.call_count == 2


def test_it_only_counts_where_lightning_accumulates() -> None:
    model = make_model()
    before = flat(model)
    trainer = Trainer(accumulate_grad_batches=4, global_step=7)
    accumulator = GradientAccumulator(SGD(model.parameters()), batch_size=8, trainer=trainer)
    assert accumulator.is_lightning_managed
    assert accumulator.effective_batch_size == 32
    assert run(accumulator, model, 3) == [True] * 3
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(flat(model), before)
    trainer.global_step = 9
    assert accumulator.optimizer_steps == accumulator.effective_step == accumulator.stats.optimizer_steps == 9


@pytest.mark.parametrize("trainer", [None, Trainer(1), Trainer({4: 8}), object()])
def test_a_trainer_that_does_not_accumulate_is_ignored(trainer: Any) -> None:
    model = make_model()
    assert not GradientAccumulator(SGD(model.parameters()), 4, trainer=trainer).is_lightning_managed


def test_a_schedule_is_read_at_its_start() -> None:
    model = make_model()
    assert GradientAccumulator(SGD(model.parameters()), trainer=Trainer({0: 4, 5: 8})).effective_batch_size == 4


def test_a_conflict_is_reported_first_with_the_ways_to_resolve_it() -> None:
    model = make_model()
    with pytest.raises(ValueError, match="conflict") as caught:
        GradientAccumulator(SGD(model.parameters()), 4, max_grad_norm=-1, trainer=Trainer(4))
    lines = str(caught.value).splitlines()
    assert lines[0] == "Gradient accumulation conflict detected!"
    assert [line.strip() for line in lines[1:]] == [
        "Manual accumulation_steps: 4",
        "Lightning accumulate_grad_batches: 4",
        "",
        "Resolution options:",
        "1. Set accumulation_steps=1 (let Lightning manage)",
        "2. Set trainer.accumulate_grad_batches=1 (use manual)",
        "3. Remove trainer parameter (disable Lightning)",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *[
            ({"accumulation_steps": n, "max_grad_norm": -1}, f"accumulation_steps must be >= 1, got {n}")
            for n in (0, -3)
        ],
        *[({"accumulation_steps": n}, "accumulation_steps must be >= 1") for n in (1.5, math.nan, "4", None, True)],
        *[
            ({"max_grad_norm": n}, f"max_grad_norm must be > 0 or None, got {n}")
            for n in (0, -1.0, math.nan, math.inf, "1")
        ],
        *[({"batch_size": n}, "batch_size must be >= 1") for n in (0, -1, 2.5, "8")],
        ({"scaler": "amp"}, "scaler must be"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    model = make_model()
    with pytest.raises(ValueError, match=message):
        GradientAccumulator(SGD(model.parameters()), **arguments)


def test_stats_are_fresh_and_readable() -> None:
    model = make_model()
    accumulator = GradientAccumulator(SGD(model.parameters()), 4, batch_size=8)
    first = accumulator.stats
    run(accumulator, model, 5, final=False)
    assert first == AccumulationStats(0, 0, 0, 32, False, 0.0)
    stats = accumulator.stats
    assert (stats.total_steps, stats.optimizer_steps, stats.current_accumulation) == (5, 1, 1)
    assert stats.is_accumulating
    assert stats.last_grad_norm > 0
    assert str(stats).startswith("1 updates from 5 micro-batches, 1 in the open window; effective batch 32")


def test_reset_epoch_warns_once_about_an_open_window(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    model = make_model()
    accumulator = GradientAccumulator(SGD(model.parameters()), 4)
    accumulator.reset_epoch()
    assert not caplog.records
    run(accumulator, model, 6, final=False)
    accumulator.reset_epoch()
    accumulator.reset_epoch()
    assert len(caplog.records) == 1
    assert all(parameter.grad is None for parameter in model.parameters())
    assert (accumulator.total_steps, accumulator.optimizer_steps) == (6, 1)


def test_state_round_trip(caplog: pytest.LogCaptureFixture) -> None:
    model = make_model()
    accumulator = GradientAccumulator(SGD(model.parameters()), 4)
    run(accumulator, model, 6, final=False)
    state = accumulator.state_dict()
    assert set(state) == {"total_steps", "optimizer_steps", "accumulation_counter", "last_grad_norm"}
    assert state["accumulation_counter"] == 2
    other = GradientAccumulator(SGD(model.parameters()), 4)
    other.load_state_dict(state)
    assert (other.total_steps, other.effective_step, other.accumulation_counter) == (6, 1, 0)
    assert "starts afresh" in caplog.text
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"total_steps": -1}, "total_steps must be >= 0"),
        ({"last_grad_norm": math.nan}, "last_grad_norm must be >= 0"),
        (None, "lacks accumulation_counter"),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(change: dict[str, Any] | None, message: str) -> None:
    model = make_model()
    accumulator = GradientAccumulator(SGD(model.parameters()), 4)
    run(accumulator, model, 4)
    state = accumulator.state_dict() | (change or {})
    if change is None:
        del state["accumulation_counter"]
    with pytest.raises(ValueError, match=message):
        accumulator.load_state_dict(state)
    assert accumulator.total_steps == 4


class Net(pl.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.accumulator: GradientAccumulator | None = None
        self.seen: list[tuple[bool, int]] = []

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        self.accumulator = GradientAccumulator(optimizer, batch_size=8, trainer=self.trainer)
        return optimizer

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        loss: torch.Tensor = self.layer(batch[0]).pow(2).mean()
        assert self.accumulator is not None
        stepped = self.accumulator.accumulate(loss, self.layer)
        self.seen.append((stepped, self.accumulator.effective_step))
        return loss


def make_trainer(folder: Path, batches: int) -> Any:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    return pl.Trainer(
        accumulate_grad_batches=batches,
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )


@lightning_warns
def test_under_lightning_it_counts_the_steps_of_the_trainer(tmp_path: Path) -> None:
    net = Net()
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 2)), batch_size=8)
    make_trainer(tmp_path, 4).fit(net, data)
    assert net.accumulator is not None
    assert net.accumulator.is_lightning_managed
    assert net.accumulator.effective_batch_size == 32
    assert net.seen == [(True, step) for step in (0, 0, 0, 0, 1, 1, 1, 1)]
    assert net.accumulator.optimizer_steps == 2
    assert net.accumulator.total_steps == 8


@lightning_warns
def test_a_real_conflict_is_detected(tmp_path: Path) -> None:
    layer = torch.nn.Linear(2, 1)
    with pytest.raises(ValueError, match="Gradient accumulation conflict detected!"):
        GradientAccumulator(torch.optim.SGD(layer.parameters()), 4, trainer=make_trainer(tmp_path, 4))


@lightning_warns
def test_it_accumulates_where_lightning_does_not(tmp_path: Path) -> None:
    layer = torch.nn.Linear(2, 1)
    accumulator = GradientAccumulator(torch.optim.SGD(layer.parameters()), 4, trainer=make_trainer(tmp_path, 1))
    assert not accumulator.is_lightning_managed
