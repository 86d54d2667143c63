import asyncio
import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import nn
from torch.optim import SGD

from onyx.server.features.ads.gradient_accumulation import GradientAccumulationConfig, GradientAccumulationTrainer
from tests.accumulation.exact import (
    big_batch_weights,
    difference,
    flat,
    make_batches,
    make_model,
    ragged_sizes,
    window_lengths,
)

criterion = nn.CrossEntropyLoss()


def trainer(**settings: Any) -> GradientAccumulationTrainer:
    return GradientAccumulationTrainer(GradientAccumulationConfig(**settings))


@given(sizes=ragged_sizes, steps=window_lengths)
@settings(max_examples=20)
def test_an_epoch_is_the_big_batches_and_its_tail_is_applied(sizes: list[int], steps: int) -> None:
    batches, model = make_batches(sizes), make_model()
    expected = big_batch_weights(model, batches, steps)
    optimizer = SGD(model.parameters(), lr=0.1)
    it = trainer(accumulation_steps=steps, gradient_clipping=None)
    result = asyncio.run(it.train_epoch(model, batches, optimizer, criterion, 0))
    assert difference(flat(model), expected) <= 1e-6
    assert result["num_batches"] == len(sizes)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_an_epoch_reports() -> None:
    model = make_model()
    it = trainer(accumulation_steps=2)
    it.setup_training(model, SGD(model.parameters(), lr=0.1), [])
    result = asyncio.run(it.train_epoch(model, make_batches([4, 4, 4]), SGD(model.parameters()), criterion, 0))
    assert set(result) == {
        "loss",
        "num_batches",
        "accumulation_stats",
        "effective_batch_size",
        "mixed_precision_enabled",
        "mp_stats",
    }
    assert result["effective_batch_size"] == 8
    assert result["accumulation_stats"]["current_step"] == 2
    json.dumps(result, allow_nan=False)


def test_the_loss_is_the_mean_over_samples() -> None:
    model, batches = make_model(), make_batches([1, 7])
    with torch.no_grad():
        x, y = torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])
        expected = criterion(model(x), y).item()
    it = trainer(accumulation_steps=8)
    result = asyncio.run(it.train_epoch(model, batches, SGD(model.parameters()), criterion, 0))
    assert result["loss"] == pytest.approx(expected, rel=1e-5)
    assert result["effective_batch_size"] == 8  # the samples there were, not 7 × 8


def test_learning_rates_are_scaled_once() -> None:
    model = make_model()
    optimizer = SGD(model.parameters(), lr=0.4)
    it = trainer(accumulation_steps=4)
    it.setup_training(model, optimizer, [])
    it.setup_training(model, optimizer, [])
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)
    untouched = SGD(model.parameters(), lr=0.4)
    trainer(accumulation_steps=4, gradient_scaling=False).setup_training(model, untouched, [])
    assert untouched.param_groups[0]["lr"] == 0.4


def test_it_works_without_gpus_and_has_a_scaler() -> None:
    model = make_model()
    it = trainer()
    it.setup_training(model, SGD(model.parameters(), lr=0.1), [0, 1])
    assert it.model is model
    assert isinstance(it.scaler, torch.amp.GradScaler)


class Keyword(nn.Module):
    """Returns a dict as a transformers model does, with a loss of its own or without."""

    def __init__(self, own_loss: bool) -> None:
        super().__init__()
        self.inner = make_model()
        self.own_loss = own_loss

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor | None]:
        logits = self.inner(features)
        return {"logits": logits, "loss": criterion(logits, labels) if self.own_loss else None}


@pytest.mark.parametrize("own_loss", [True, False])
def test_batches_may_be_dicts(own_loss: bool) -> None:
    pairs = make_batches([2, 3])
    dicts = [{"features": x, "labels": y} for x, y in pairs]
    model = Keyword(own_loss)
    expected = big_batch_weights(model.inner, pairs, 2)
    it = trainer(accumulation_steps=2, gradient_clipping=None)
    optimizer = SGD(model.parameters(), lr=0.1)
    asyncio.run(it.train_epoch(model, dicts, optimizer, None if own_loss else criterion, 0))
    assert difference(flat(model.inner), expected) <= 1e-6


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "the loader is empty"),
        ([(torch.ones(1, 5),)], "must be a pair"),
        ([{"features": torch.ones(1, 5)}], "labels"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(batches: list[Any], message: str) -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = make_model()

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.inner(features)
            return output

    model = Bare()
    with pytest.raises(ValueError, match=message):
        asyncio.run(trainer().train_epoch(model, batches, SGD(model.parameters()), criterion, 0))


def test_a_pair_needs_a_criterion() -> None:
    model = make_model()
    with pytest.raises(ValueError, match="need a criterion"):
        asyncio.run(trainer().train_epoch(model, make_batches([2]), SGD(model.parameters()), None, 0))


def test_the_event_loop_stays_free_and_cancelling_stops_the_thread() -> None:
    async def scenario() -> int:
        taken = 0
        under_way = asyncio.Event()
        loop = asyncio.get_running_loop()

        def endless() -> Iterator[Any]:
            nonlocal taken
            batch = make_batches([2])[0]
            while True:
                taken += 1
                loop.call_soon_threadsafe(under_way.set)
                yield batch

        model = make_model()
        task = asyncio.create_task(
            trainer().train_epoch(model, endless(), SGD(model.parameters(), lr=0.0), criterion, 0)
        )
        await under_way.wait()  # the loop runs while the epoch does
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return taken

    assert asyncio.run(scenario()) >= 1  # asyncio.run joins the thread: it would hang if the thread had not stopped


def test_nothing_leaks_into_the_next_epoch() -> None:
    model = make_model()
    twice = copy.deepcopy(model)
    batches = make_batches([2, 2, 2])
    it = trainer(accumulation_steps=2, gradient_clipping=None)
    optimizer = SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        asyncio.run(it.train_epoch(model, batches, optimizer, criterion, epoch))
    for _ in range(2):
        fresh = trainer(accumulation_steps=2, gradient_clipping=None)
        asyncio.run(fresh.train_epoch(twice, batches, SGD(twice.parameters(), lr=0.1), criterion, 0))
    assert torch.equal(flat(model), flat(twice))
