from pathlib import Path

import pytest
import torch
from torch import nn

from onyx.training.contract.spec import TrainingSpec
from onyx.training.rank.optimizer import optimizer_for
from onyx.training.state import checkpoint
from onyx.training.state.checkpoint import CheckpointSchedule, complete, latest, read_progress, restore, save
from onyx.training.state.progress import Progress, Steering


def make() -> tuple[nn.Module, torch.optim.AdamW]:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1))
    model[1].bias.requires_grad_(False)
    return model, optimizer_for(model, TrainingSpec())


def progress(update: int, **more: object) -> Progress:
    steering = Steering(budgets=(100,), window=8, clipping=None)
    return Progress.model_validate({"steering": steering, "update": update, "windows": update, **more})


def step(model: nn.Module, optimizer: torch.optim.AdamW) -> None:
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_weights_and_optimizer_come_back_to_the_bit(tmp_path: Path) -> None:
    model, optimizer = make()
    for _ in range(3):
        step(model, optimizer)
    loss = 0.1 + 0.2
    saved = progress(3, samples=24, last_loss=loss, epochs=[{"epoch": 1, "train_loss": 1 / 3}])
    path = save(tmp_path, saved, model, optimizer)
    assert path.name == "update-00000003"

    other, again = make()
    restore(path, other, again)
    assert read_progress(path) == saved
    torch.manual_seed(5)
    step(model, optimizer)
    torch.manual_seed(5)
    step(other, again)
    # The frozen bias is not in a checkpoint. It is the same in both models from the start.
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    model, optimizer = make()
    for update in (5, 10, 15):
        save(tmp_path, progress(update), model, optimizer)
    assert [path.name for path in complete(tmp_path)] == ["update-00000010", "update-00000015"]
    assert latest(tmp_path) == tmp_path / "update-00000015"


def test_an_incomplete_one_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = make()
    save(tmp_path, progress(5), model, optimizer)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_tensors", fail)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, progress(10), model, optimizer)
    assert [path.name for path in tmp_path.iterdir()] == ["update-00000005"]


def test_a_later_save_of_the_same_update_takes_its_place(tmp_path: Path) -> None:
    """Skipped windows are progress without an update."""
    model, optimizer = make()
    save(tmp_path, progress(5), model, optimizer)
    save(tmp_path, progress(5, windows=7, skipped_not_finite=2), model, optimizer)
    assert [read_progress(path).windows for path in complete(tmp_path)] == [7]


def test_saving_costs_a_twentieth_of_the_time_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("onyx.training.state.checkpoint.time.monotonic", lambda: now)
    schedule = CheckpointSchedule(None, 0)
    assert not schedule.due(1)
    now += 20
    assert schedule.due(2)
    schedule.saved(2, seconds=3.0)
    now += 59
    assert not schedule.due(3)
    now += 1
    assert schedule.due(4)


def test_the_schedule_can_count_updates() -> None:
    schedule = CheckpointSchedule(5, 10)
    assert next(update for update in range(10, 20) if schedule.due(update)) == 15


def test_norms_and_biases_do_not_decay() -> None:
    _, optimizer = make()
    decays = {
        group["weight_decay"]: [tuple(each.shape) for each in group["params"]] for group in optimizer.param_groups
    }
    assert decays == {0.01: [(4, 3), (1, 4)], 0.0: [(4,), (4,), (1,)]}
    assert all(group["fused"] for group in optimizer.param_groups)
