import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import Module
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR

from onyx.accumulation.loss_scaling import DynamicLossScaler
from onyx.accumulation.system import GradientAccumulationTrainer, checkpoint
from onyx.accumulation.system.statefile import write_state
from tests.accumulation.exact import flat, make_batches, make_model
from tests.accumulation.system.common import Dial, config_of, trainer_of

BATCHES = make_batches([4, 3, 4, 2, 4, 1, 3])


def trainer(model: Module | None = None, *, scaled: bool = True, **changes: Any) -> GradientAccumulationTrainer:
    model = model or make_model()
    optimizer = AdamW(model.parameters(), lr=0.01)
    scheduler = CosineAnnealingLR(optimizer, T_max=20)
    made = GradientAccumulationTrainer(config_of(accumulation_steps=3, **changes), gauge=Dial(0.5))
    scaler = torch.amp.GradScaler("cpu", growth_interval=2) if scaled else None
    made.setup_training(model, optimizer, nn.CrossEntropyLoss(), scheduler, scaler=scaler)
    return made


def weights(trained: GradientAccumulationTrainer) -> torch.Tensor:
    return flat(trained.setup.model)


def test_a_run_resumes_to_the_bit(tmp_path: Path) -> None:
    straight = trainer()
    straight.train(BATCHES, BATCHES, num_epochs=4, save_dir=tmp_path)
    for epoch in (1, 3):
        resumed = trainer()
        resumed.load_checkpoint(tmp_path / f"epoch_{epoch}")
        assert resumed.current_epoch == epoch
        assert len(resumed.training_history) == epoch
        resumed.train(BATCHES, BATCHES, num_epochs=4, save_dir=None)
        assert torch.equal(weights(resumed), weights(straight))
        assert resumed.get_training_stats() == straight.get_training_stats()
        assert resumed.setup.scheduler.state_dict() == straight.setup.scheduler.state_dict()
        assert resumed.accumulator.scaler.state_dict() == straight.accumulator.scaler.state_dict()


def test_a_checkpoint_within_a_window_resumes_to_the_bit(tmp_path: Path) -> None:
    straight = trainer()
    for batch in BATCHES[:4]:
        straight.train_step(*batch)
    straight.save_checkpoint(tmp_path / "here", 0)
    resumed = trainer()
    resumed.load_checkpoint(tmp_path / "here")
    for each in (straight, resumed):
        assert each.accumulator.state.accumulation_step == 1
        for batch in BATCHES[4:]:
            each.train_step(*batch)
        each.accumulator.flush()
    assert torch.equal(weights(resumed), weights(straight))


@pytest.mark.parametrize("field", ["save_accumulation_state", "restore_accumulation_state"])
def test_the_state_of_the_accumulator_is_optional(tmp_path: Path, field: str) -> None:
    without: dict[str, Any] = {field: False}
    first = trainer(**without)
    for batch in BATCHES[:4]:
        first.train_step(*batch)
    first.save_checkpoint(tmp_path / "here", 2)
    assert (tmp_path / "here" / "accumulation.safetensors").exists() == (field != "save_accumulation_state")
    other = trainer(**without)
    other.train_step(*BATCHES[0])
    other.load_checkpoint(tmp_path / "here")
    assert other.accumulator.get_accumulation_stats()["current_step"] == 0
    assert all(p.grad is None for p in other.setup.model.parameters())
    assert torch.equal(weights(other), weights(first))
    assert other.current_epoch == 2
    assert other.accumulator.scaler.state_dict() == first.accumulator.scaler.state_dict()


def test_it_is_a_directory_of_safetensors_and_json(tmp_path: Path) -> None:
    saved = trainer()
    saved.save_checkpoint(tmp_path / "deep" / "here", 3)
    folder = tmp_path / "deep" / "here"
    assert sorted(path.name for path in folder.iterdir()) == [
        "accumulation.safetensors",
        "checkpoint.json",
        "model.safetensors",
        "training.safetensors",
    ]
    assert json.loads((folder / "checkpoint.json").read_text())["epoch"] == 3
    other = make_model()
    other.load_state_dict(load_file(folder / "model.safetensors"))
    assert torch.equal(flat(other), weights(saved))
    assert [path.name for path in folder.parent.iterdir()] == ["here"]


def test_saving_again_replaces_the_whole_directory(tmp_path: Path) -> None:
    saved = trainer()
    saved.save_checkpoint(tmp_path / "here", 1)
    saved.config.save_accumulation_state = False
    saved.save_checkpoint(tmp_path / "here", 2)
    assert not (tmp_path / "here" / "accumulation.safetensors").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
    saved.load_checkpoint(tmp_path / "here")
    assert saved.current_epoch == 2


def snapshot(place: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(place)): p.read_bytes() if p.is_file() else None for p in sorted(place.rglob("*"))}


FOREIGN: dict[str, Callable[[Path], Any]] = {
    "a file": lambda place: place.write_text("a thesis"),
    "a directory": lambda place: _fill(place, "thesis.txt"),
    "only a directory": lambda place: (place / "empty").mkdir(parents=True),
    "its file of another program": lambda place: _fill(place, "checkpoint.json", '{"format": "theirs"}'),
    "its file of no format": lambda place: _fill(place, "checkpoint.json", "[]"),
    "more than a checkpoint": lambda place: _fill(_saved(place), "notes.txt"),
    "a checkpoint in a checkpoint": lambda place: _saved(_saved(place) / "epoch_1"),
    "something of its former name": lambda place: _fill(place.with_name(".here.old"), "thesis.txt"),
}


def _fill(place: Path, name: str, text: str = "a thesis") -> None:
    place.mkdir(exist_ok=True)
    (place / name).write_text(text)


def _saved(place: Path) -> Path:
    trainer().save_checkpoint(place, 1)
    return place


@pytest.mark.parametrize("what", list(FOREIGN))
def test_what_is_not_a_checkpoint_is_never_replaced(tmp_path: Path, what: str) -> None:
    FOREIGN[what](tmp_path / "here")
    before = snapshot(tmp_path)
    with pytest.raises(FileExistsError, match="give another path"):
        trainer().save_checkpoint(tmp_path / "here", 2)
    assert snapshot(tmp_path) == before


def test_train_checks_the_checkpoint_paths_before_the_first_epoch(tmp_path: Path) -> None:
    _fill(tmp_path / "epoch_4", "thesis.txt")
    trained = trainer(checkpoint_frequency=2)
    before = weights(trained)
    with pytest.raises(FileExistsError, match="epoch_4"):
        trained.train(BATCHES, num_epochs=4, save_dir=tmp_path)
    assert torch.equal(weights(trained), before)
    assert list(snapshot(tmp_path)) == ["epoch_4", "epoch_4/thesis.txt"]
    trained.train(BATCHES, num_epochs=3, save_dir=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch_2", "epoch_4"]


def test_an_empty_directory_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    trainer().save_checkpoint(tmp_path / "here", 1)
    trainer().load_checkpoint(tmp_path / "here")
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_a_symlink_is_followed(tmp_path: Path) -> None:
    saved = trainer()
    saved.save_checkpoint(tmp_path / "there" / "real", 1)
    (tmp_path / "here").symlink_to(tmp_path / "there" / "real")
    saved.save_checkpoint(tmp_path / "here", 2)
    assert (tmp_path / "here").is_symlink()
    saved.load_checkpoint(tmp_path / "there" / "real")
    assert saved.current_epoch == 2
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["real"]


KILLED = """
import os, signal, sys
from onyx.accumulation.system import checkpoint
from tests.accumulation.system.test_checkpoint import trainer

checkpoint.write_state = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
trainer().save_checkpoint(sys.argv[1], 1)
"""


def test_saving_removes_leftovers_of_a_killed_process_but_no_foreign_directory_of_such_a_name(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "here")], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.glob(".here.*.part/model.safetensors"))) == 1
    _fill(tmp_path / ".here.part", "thesis.txt")
    _fill(tmp_path / ".here.mine.part", "thesis.txt")
    trainer().save_checkpoint(tmp_path / "here", 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".here.mine.part", ".here.part", "here"]


def test_a_crash_while_saving_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = trainer()
    saved.save_checkpoint(tmp_path / "here", 1)
    with monkeypatch.context() as broken:
        broken.setattr(checkpoint, "write_state", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            saved.save_checkpoint(tmp_path / "here", 2)
    saved.load_checkpoint(tmp_path / "here")
    assert saved.current_epoch == 1
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
    saved.save_checkpoint(tmp_path / "here", 3)
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_a_crash_between_the_two_renames_loses_nothing(tmp_path: Path) -> None:
    saved = trainer()
    saved.save_checkpoint(tmp_path / "here", 1)
    (tmp_path / "here").rename(tmp_path / ".here.old")
    saved.load_checkpoint(tmp_path / "here")
    assert saved.current_epoch == 1


def test_a_checkpoint_without_a_scaler_loads_into_a_trainer_with_one_and_the_reverse(tmp_path: Path) -> None:
    for name, scaled in (("plain", False), ("scaled", True)):
        first = trainer(scaled=scaled)
        first.train_epoch(BATCHES)
        first.save_checkpoint(tmp_path / name, 1)
        other = trainer(scaled=not scaled)
        other.load_checkpoint(tmp_path / name)
        assert torch.equal(weights(other), weights(first))


class WithExtraState(nn.Linear):
    """Has extra state in its state dict that is not a tensor."""

    note = "new"

    def get_extra_state(self) -> dict[str, str]:
        return {"note": self.note}

    def set_extra_state(self, state: dict[str, str]) -> None:
        self.note = state["note"]


def test_extra_state_and_buffers_come_back(tmp_path: Path) -> None:
    layer, other_layer = WithExtraState(5, 3), WithExtraState(5, 3)
    model, other = nn.Sequential(layer, nn.BatchNorm1d(3)), nn.Sequential(other_layer, nn.BatchNorm1d(3))
    first = trainer(model)
    first.train_epoch(make_batches([4, 4]))
    layer.note = "old"
    first.save_checkpoint(tmp_path / "here", 1)
    trainer(other).load_checkpoint(tmp_path / "here")
    assert other_layer.note == "old"
    assert torch.equal(other.state_dict()["1.running_mean"], model.state_dict()["1.running_mean"])


def test_tied_weights_can_be_saved(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5))
    model[1].weight = model[0].weight
    first = trainer(model)
    first.train_step(*make_batches([2])[0])
    first.save_checkpoint(tmp_path / "here", 1)
    first.load_checkpoint(tmp_path / "here")
    assert model[1].weight is model[0].weight


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "missing": shutil.rmtree,
    "a file": lambda folder: _replace(folder, "x"),
    "empty": lambda folder: _replace(folder, None),
    "no json": lambda folder: (folder / "checkpoint.json").unlink(),
    "bad json": lambda folder: (folder / "checkpoint.json").write_text("{"),
    "binary json": lambda folder: (folder / "checkpoint.json").write_bytes(b"\xff\xfe\x00"),
    "other json": lambda folder: (folder / "checkpoint.json").write_text('{"epoch": 1}'),
    "bad history": lambda folder: _edit(folder, history=3),
    "bad epoch": lambda folder: _edit(folder, epoch=-1),
    "no model": lambda folder: (folder / "model.safetensors").unlink(),
    "cut model": lambda folder: _cut(folder / "model.safetensors"),
    "other model": lambda folder: save_file({"weight": torch.ones(1)}, folder / "model.safetensors"),
    "other shapes": lambda folder: _reshape(folder / "model.safetensors"),
    "no training": lambda folder: (folder / "training.safetensors").unlink(),
    "cut training": lambda folder: _cut(folder / "training.safetensors"),
    "other training": lambda folder: write_state(folder / "training.safetensors", {"optimizer": {}}),
    "no accumulation": lambda folder: (folder / "accumulation.safetensors").unlink(),
    "cut accumulation": lambda folder: _cut(folder / "accumulation.safetensors"),
    "other accumulation": lambda folder: write_state(folder / "accumulation.safetensors", {"format": "x"}),
}


def _replace(folder: Path, text: str | None) -> None:
    shutil.rmtree(folder)
    if text is None:
        folder.mkdir()
    else:
        folder.write_text(text)


def _edit(folder: Path, **changes: Any) -> None:
    path = folder / "checkpoint.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def _reshape(path: Path) -> None:
    save_file({name: tensor.reshape(1, *tensor.shape) for name, tensor in load_file(path).items()}, path)


@pytest.mark.parametrize("how", list(DAMAGE))
def test_a_damaged_or_foreign_checkpoint_is_refused_and_changes_nothing(tmp_path: Path, how: str) -> None:
    trained = trainer()
    trained.save_checkpoint(tmp_path / "here", 1)
    DAMAGE[how](tmp_path / "here")
    trained.train_step(*BATCHES[0])
    before = weights(trained)
    with pytest.raises(ValueError, match=r"checkpoint|state|damaged|epoch must"):
        trained.load_checkpoint(tmp_path / "here")
    assert torch.equal(weights(trained), before)
    assert (trained.current_epoch, trained.accumulator.state.accumulation_step) == (0, 1)


def test_a_checkpoint_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    trainer().save_checkpoint(tmp_path / "here", 1)
    model = make_model()
    groups = SGD([{"params": [p]} for p in model.parameters()], lr=0.1)
    other = trainer_of(model, groups)
    before = flat(model)
    with pytest.raises(ValueError, match="group"):
        other.load_checkpoint(tmp_path / "here")
    assert torch.equal(flat(model), before)


def test_a_checkpoint_of_another_kind_of_scaler_is_refused(tmp_path: Path) -> None:
    trainer().save_checkpoint(tmp_path / "here", 1)
    other = trainer(scaled=False)
    other.accumulator.scaler = DynamicLossScaler()
    before = weights(other)
    with pytest.raises(ValueError, match=r"keys|not of the kind in use"):
        other.load_checkpoint(tmp_path / "here")
    dynamic = trainer(scaled=False)
    dynamic.accumulator.scaler = DynamicLossScaler()
    dynamic.save_checkpoint(tmp_path / "dynamic", 1)
    with pytest.raises(ValueError, match="saved scaler is not of the kind in use, GradScaler"):
        trainer().load_checkpoint(tmp_path / "dynamic")
    assert torch.equal(weights(other), before)


@pytest.mark.parametrize("epoch", [-1, 0.5, None, "1"])
def test_the_epoch_is_checked(tmp_path: Path, epoch: Any) -> None:
    with pytest.raises(ValueError, match="epoch must be >= 0"):
        trainer().save_checkpoint(tmp_path / "here", epoch)
