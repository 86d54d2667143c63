"""With a real Lightning trainer: it accumulates, Onyx counts."""

import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from onyx.accumulation.engine import GradientAccumulator

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Lightning's own imports warn
    import lightning as pl

pytestmark = pytest.mark.filterwarnings("ignore")


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


def test_a_lightning_run_is_mirrored(tmp_path: Path) -> None:
    net = Net()
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 2)), batch_size=8)
    make_trainer(tmp_path, 4).fit(net, data)
    assert net.accumulator is not None
    assert net.accumulator.is_lightning_managed
    assert net.accumulator.effective_batch_size == 32
    assert net.seen == [(True, step) for step in (0, 0, 0, 0, 1, 1, 1, 1)]
    assert net.accumulator.optimizer_steps == 2
    assert net.accumulator.total_steps == 8


def test_a_real_conflict_is_detected(tmp_path: Path) -> None:
    layer = torch.nn.Linear(2, 1)
    with pytest.raises(ValueError, match="Gradient accumulation conflict detected!"):
        GradientAccumulator(torch.optim.SGD(layer.parameters()), 4, trainer=make_trainer(tmp_path, 4))


def test_lightning_that_does_not_accumulate_leaves_it_to_us(tmp_path: Path) -> None:
    layer = torch.nn.Linear(2, 1)
    accumulator = GradientAccumulator(torch.optim.SGD(layer.parameters()), 4, trainer=make_trainer(tmp_path, 1))
    assert not accumulator.is_lightning_managed
