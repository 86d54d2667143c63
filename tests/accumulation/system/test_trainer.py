import copy
import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from onyx.accumulation.precision import Precision
from onyx.accumulation.system import GradientAccumulationTrainer
from tests.accumulation.exact import flat, make_batches, make_model
from tests.accumulation.system.common import Dial, Slope, config_of, trainer_of


def loader(samples: int = 20, batch_size: int = 2) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(5)
    x, y = torch.randn(samples, 5, generator=generator), torch.randint(0, 3, (samples,), generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=batch_size)


def test_the_result_of_a_step() -> None:
    trainer = trainer_of(make_model(), accumulation_steps=2, effective_batch_size=4)
    first, second = (trainer.train_step(*batch) for batch in make_batches([4, 4]))
    assert set(first) == {
        "loss",
        "output_shape",
        "target_shape",
        "accumulation_step",
        "should_optimize",
        "effective_batch_size",
    }
    assert (first["output_shape"], first["target_shape"]) == (torch.Size([4, 3]), torch.Size([4]))
    assert (first["accumulation_step"], first["should_optimize"]) == (1, False)
    assert (second["accumulation_step"], second["should_optimize"]) == (2, True)
    assert second["effective_batch_size"] == 8
    assert type(first["loss"]) is float


def test_the_result_of_a_step_that_was_cut() -> None:
    trainer = trainer_of(make_model(), accumulation_steps=2, effective_batch_size=4)
    result = trainer.train_step(*make_batches([12])[0])
    assert result["output_shape"] == torch.Size([12, 3])
    assert result["should_optimize"]  # after two of its three parts
    assert result["accumulation_step"] == 1
    assert trainer.accumulator.state.optimizer_steps == 1


def test_the_result_of_an_epoch() -> None:
    trainer = trainer_of(make_model(), accumulation_steps=4, effective_batch_size=2)
    result = trainer.train_epoch(loader(20))
    assert set(result) == {"epoch_loss", "num_batches", "optimization_steps", "effective_batch_size"}
    assert (result["num_batches"], result["optimization_steps"], result["effective_batch_size"]) == (10, 3, 8)
    assert set(trainer.validate_epoch(loader(6))) == {"val_loss", "num_batches"}
    assert trainer.validate_epoch(loader(6))["num_batches"] == 3


def test_an_epoch_leaves_no_window_open() -> None:
    trainer = trainer_of(make_model(), accumulation_steps=4)
    for _ in range(2):
        assert trainer.train_epoch(loader(6))["optimization_steps"] == 1
        assert trainer.accumulator.state.window is None


def test_validation_trains_nothing_and_restores_the_mode() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3))
    trainer = trainer_of(model)
    before = copy.deepcopy(model.state_dict())
    trainer.train_step(*make_batches([4])[0])
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    saved = copy.deepcopy(model.state_dict())
    first, second = trainer.validate_epoch(loader()), trainer.validate_epoch(loader())
    assert first == second  # no dropout
    assert model.training
    assert all(torch.equal(model.state_dict()[name], saved[name]) for name in before)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert parameter.grad is not None
        assert gradient is not None
        assert torch.equal(parameter.grad, gradient)


def test_the_scheduler_steps_once_per_real_update() -> None:
    model = make_model()
    optimizer = SGD(model.parameters(), lr=1.0)
    scheduler = LambdaLR(optimizer, lambda update: 1 / (1 + update))
    trainer = GradientAccumulationTrainer(config_of(accumulation_steps=2), gauge=Dial(0.5))
    trainer.setup_training(model, optimizer, nn.CrossEntropyLoss(), scheduler)
    batches = make_batches([2] * 7)
    batches[2][0][0, 0] = math.nan
    result = trainer.train_epoch(batches)
    assert result["optimization_steps"] == 3
    assert scheduler.last_epoch == 3
    assert trainer.accumulator.state.skipped_steps == 1


def test_training_learns(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 5)
    y = (x[:, 0] > 0).long()
    model = make_model()
    trainer = trainer_of(model, AdamW(model.parameters(), lr=0.05), accumulation_steps=2)
    history = trainer.train(DataLoader(TensorDataset(x, y), batch_size=16), num_epochs=15, save_dir=tmp_path)
    assert history[-1]["epoch_loss"] < 0.3 * history[0]["epoch_loss"]
    assert [entry["epoch"] for entry in history] == list(range(1, 16))


def test_validation_and_checkpoint_frequency_count_epochs(tmp_path: Path) -> None:
    trainer = trainer_of(make_model(), validation_frequency=2, checkpoint_frequency=3)
    history = trainer.train(loader(), loader(4), num_epochs=7, save_dir=tmp_path / "runs")
    assert ["val_loss" in entry for entry in history] == [False, True, False, True, False, True, False]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["epoch_3", "epoch_6"]


def test_without_a_directory_nothing_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trainer_of(make_model()).train(loader(), num_epochs=1, save_dir=None)
    assert list(tmp_path.iterdir()) == []
    trainer_of(make_model()).train(loader(), num_epochs=1)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*")] == ["checkpoints/epoch_1"]


def test_the_stats_of_a_run() -> None:
    trainer = trainer_of(make_model())
    trainer.train(loader(), num_epochs=2, save_dir=None)
    stats = trainer.get_training_stats()
    assert set(stats) == {"current_epoch", "accumulation_stats", "training_history"}
    assert stats["current_epoch"] == 2
    assert stats["accumulation_stats"] == trainer.accumulator.get_accumulation_stats()
    assert len(stats["training_history"]) == 2


def test_a_second_train_trains_further_epochs() -> None:
    trainer = trainer_of(make_model())
    for _ in range(2):
        trainer.train(loader(), num_epochs=2, save_dir=None)
    assert trainer.current_epoch == 4


@pytest.mark.parametrize("epochs", [0, -1, 1.5, None, True])
def test_the_number_of_epochs_is_checked(epochs: Any) -> None:
    with pytest.raises(ValueError, match="num_epochs must be >= 1"):
        trainer_of(make_model()).train(loader(), num_epochs=epochs, save_dir=None)


def test_nothing_works_before_setup(tmp_path: Path) -> None:
    trainer = GradientAccumulationTrainer(config_of())
    for call in (
        lambda: trainer.train_step(*make_batches([2])[0]),
        lambda: trainer.train_epoch(loader()),
        lambda: trainer.validate_epoch(loader()),
        lambda: trainer.train(loader(), save_dir=tmp_path),
        lambda: trainer.save_checkpoint(tmp_path / "c", 1),
        lambda: trainer.load_checkpoint(tmp_path / "c"),
    ):
        with pytest.raises(RuntimeError, match="setup_training"):
            call()
    assert trainer.get_training_stats()["current_epoch"] == 0


def test_memory_pressure_changes_the_cut_and_not_the_result() -> None:
    calm, pressed = make_model(torch.float64), make_model(torch.float64)
    batches = make_batches([8] * 8, torch.float64)
    same: dict[str, Any] = {
        "accumulation_steps": 2,
        "effective_batch_size": 8,
        "target_batch_size": 16,
        "strategy": "memory_aware",
    }
    trainer_of(calm, **same).train_epoch(batches)
    trainer = trainer_of(pressed, gauge=Dial(0.5, 0.9, 0.9, 0.1), **same)
    result = trainer.train_epoch(batches)
    assert torch.allclose(flat(calm), flat(pressed), rtol=1e-12)
    assert result["optimization_steps"] == 4
    # windows of 2, 4 and 8 micro-batches, then memory for 4 again
    assert trainer.accumulator.state.total_steps == 2 + 4 + 8 + 4
    assert result["effective_batch_size"] == 16


@pytest.mark.parametrize("precision", list(Precision))
def test_forward_runs_in_the_given_precision(precision: Precision) -> None:
    """Reads the autocast state and multiplies no matrices: in bfloat16 that may kill the process on some CPUs."""
    seen: list[torch.dtype] = []

    class Watch(Slope):
        def forward(self, x: float | Tensor) -> Tensor:
            enabled = torch.is_autocast_enabled("cpu")
            seen.append(torch.get_autocast_dtype("cpu") if enabled else torch.float32)
            return super().forward(x)

    trainer = trainer_of(Watch())
    trainer._setup = replace(trainer.setup, precision=precision, criterion=nn.MSELoss())
    batch = (torch.ones(2), torch.ones(2))
    trainer.train_step(*batch)
    trainer.validate_epoch([batch])
    assert seen == [precision.dtype] * 2


def test_an_epoch_is_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="onyx")
    trainer_of(make_model(), logging_frequency=100).train(loader(), num_epochs=2, save_dir=None)
    assert [record.getMessage()[:12] for record in caplog.records] == ["epoch 1 of 2", "epoch 2 of 2"]
