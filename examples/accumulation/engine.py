"""The accumulator of document 003, which owns an optimizer. See docs/engine.md."""

import copy

import torch
from torch import Tensor, nn

from onyx.accumulation.engine import GradientAccumulator, MetricsTracker

torch.manual_seed(0)
DATA = [(torch.randn(8, 16), torch.randn(8, 1)) for _ in range(10)]


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def manual_accumulation() -> None:
    """Four batches per update. The last two of an epoch are an update too, the mean over two."""
    model = make_model()
    accumulator = GradientAccumulator(
        torch.optim.SGD(model.parameters(), lr=0.1), accumulation_steps=4, max_grad_norm=1.0, batch_size=8
    )
    tracker = MetricsTracker(use_wandb=False, gradient_accumulation_steps=4)
    stepped_at = []
    for _epoch in range(2):
        for index, batch in enumerate(DATA):
            loss = loss_of(model, batch)
            if accumulator.accumulate(loss, model, is_final_batch=index == len(DATA) - 1):
                stepped_at.append(index)
            tracker.log_scalar("train/loss", loss.item(), step=accumulator.effective_step)
        accumulator.reset_epoch()
    assert stepped_at == [3, 7, 9] * 2
    assert accumulator.effective_batch_size == 32
    assert accumulator.effective_step == 6
    assert {row["effective_step"] for row in tracker.get_step_metrics()} == set(range(7))
    print(accumulator.stats)


def mixed_precision() -> None:
    """The accumulator scales, unscales, steps and updates the scaler."""
    model = make_model()
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    scaler = torch.amp.GradScaler(device.type, enabled=device.type != "cpu")
    accumulator = GradientAccumulator(
        torch.optim.SGD(model.to(device).parameters(), lr=0.1), accumulation_steps=5, scaler=scaler, batch_size=8
    )
    for x, y in DATA:
        with torch.autocast(device.type, dtype=torch.float16, enabled=scaler.is_enabled()):
            loss = loss_of(model, (x.to(device), y.to(device)))
        accumulator.accumulate(loss, model)
    assert accumulator.optimizer_steps == 2


def lightning_accumulates() -> None:
    """Where a Lightning trainer accumulates, the accumulator only counts. Here a class stands in for the trainer."""

    class Trainer:
        accumulate_grad_batches = 4
        global_step = 3

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accumulator = GradientAccumulator(optimizer, batch_size=8, trainer=Trainer())
    assert accumulator.is_lightning_managed
    assert accumulator.effective_batch_size == 32
    assert accumulator.accumulate(loss_of(model, DATA[0]), model)
    assert accumulator.effective_step == 3
    try:
        GradientAccumulator(optimizer, accumulation_steps=4, trainer=Trainer())
    except ValueError as conflict:
        assert "Resolution options:" in str(conflict)


def same_update_as_the_big_batch() -> None:
    """Eight batches of 4 give the update of one batch of 32."""
    small = make_model()
    big = copy.deepcopy(small)
    parts = [(x[:4], y[:4]) for x, y in DATA[:8]]
    accumulator = GradientAccumulator(torch.optim.SGD(small.parameters(), lr=0.1), 8, batch_size=4)
    for part in parts:
        accumulator.accumulate(loss_of(small, part), small)
    whole = (torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]))
    GradientAccumulator(torch.optim.SGD(big.parameters(), lr=0.1), batch_size=32).accumulate(loss_of(big, whole), big)
    for mine, theirs in zip(small.parameters(), big.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def resume() -> None:
    """The counters are part of the state; an open window starts afresh."""
    model = make_model()
    first = GradientAccumulator(torch.optim.SGD(model.parameters(), lr=0.1), 4)
    for batch in DATA[:8]:
        first.accumulate(loss_of(model, batch), model)
    second = GradientAccumulator(torch.optim.SGD(model.parameters(), lr=0.1), 4)
    second.load_state_dict(first.state_dict())
    assert second.effective_step == 2


def without_clipping() -> None:
    """The norm is measured even without clipping."""
    model = make_model()
    accumulator = GradientAccumulator(torch.optim.SGD(model.parameters(), lr=0.1), max_grad_norm=None)
    accumulator.accumulate(loss_of(model, DATA[0]), model)
    assert accumulator.stats.last_grad_norm > 0


def ddp_loop(accumulator: GradientAccumulator, model: nn.Module) -> None:
    """Under DDP, ranks exchange gradients only on the last batch of a window."""
    for index, batch in enumerate(DATA):
        final = index == len(DATA) - 1
        with accumulator.micro_batch(model, final):
            accumulator.accumulate(loss_of(model, batch), model, final)


if __name__ == "__main__":
    manual_accumulation()
    mixed_precision()
    lightning_accumulates()
    same_update_as_the_big_batch()
    resume()
    without_clipping()
    net = make_model()  # a plain module works with the same loop
    ddp_loop(GradientAccumulator(torch.optim.SGD(net.parameters(), lr=0.1), 4), net)
