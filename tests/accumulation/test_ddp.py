import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed
from torch._C._distributed_c10d import GradBucket
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from onyx.accumulation import engine
from onyx.accumulation.ads import GradientAccumulationConfig, GradientAccumulator, integrate_with_distributed
from onyx.accumulation.ddp import exchange_now, peers_of, skips_sync, sync_if
from tests.accumulation.exact import (
    difference,
    flat,
    join,
    make_batches,
    make_model,
    mean_loss,
    windows,
)
from tests.accumulation.ranks import run_ranks

Exchange = Callable[[Any, Any], Any]


def test_a_plain_module_needs_no_exchange() -> None:
    model = make_model()
    assert peers_of(model) is None
    assert not skips_sync(model)
    exchange_now(model)
    with sync_if(model, last=False):
        mean_loss(model, make_batches([2])[0]).backward()


class Counted:
    """A DDP model that counts its gradient exchanges."""

    def __init__(self) -> None:
        self.model = DistributedDataParallel(make_model())
        self.exchanges = 0
        self.model.register_comm_hook(None, self._hook)

    def _hook(self, _: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        self.exchanges += 1
        tensor: Tensor = bucket.buffer()
        distributed.all_reduce(tensor)
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(tensor / distributed.get_world_size())
        return future


def rank_batches(rank: int, world_size: int, count: int) -> tuple[list[Any], list[Any]]:
    """All batches, and those of this rank: every window has equally many on each."""
    everything = make_batches([4] * count * world_size)
    return everything, everything[rank::world_size]


def expected_weights(everything: list[Any], per_window: list[int]) -> Tensor:
    model = make_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    start = 0
    for count in per_window:
        mean_loss(model, join(everything[start : start + count])).backward()
        optimizer.step()
        optimizer.zero_grad()
        start += count
    return flat(model)


def ddp_work(rank: int, world_size: int) -> None:
    engine_exchanges_once_per_window(rank, world_size)
    engine_without_the_context_is_exact_too(rank, world_size)
    engine_ending_a_window_inside_no_sync_still_exchanges(rank, world_size)
    unequal_weights_on_unequal_ranks(rank)
    sync_gradients_off_exchanges_every_time(rank, world_size)
    a_trainer_is_wrapped()


def engine_exchanges_once_per_window(rank: int, world_size: int) -> None:
    everything, mine = rank_batches(rank, world_size, 10)
    counted = Counted()
    accumulator = engine.GradientAccumulator(SGD(counted.model.parameters(), lr=0.1), 4, max_grad_norm=None)
    for index, batch in enumerate(mine):
        final = index == len(mine) - 1
        with accumulator.micro_batch(counted.model, final):
            accumulator.accumulate(mean_loss(counted.model, batch), counted.model, final)
    assert accumulator.optimizer_steps == 3
    assert counted.exchanges == 3
    assert difference(flat(counted.model), expected_weights(everything, [8, 8, 4])) < 1e-6


def engine_without_the_context_is_exact_too(rank: int, world_size: int) -> None:
    everything, mine = rank_batches(rank, world_size, 8)
    counted = Counted()
    accumulator = engine.GradientAccumulator(SGD(counted.model.parameters(), lr=0.1), 4, max_grad_norm=None)
    for batch in mine:
        accumulator.accumulate(mean_loss(counted.model, batch), counted.model)
    assert counted.exchanges == 8
    assert difference(flat(counted.model), expected_weights(everything, [8, 8])) < 1e-6


def engine_ending_a_window_inside_no_sync_still_exchanges(rank: int, world_size: int) -> None:
    """The context does not know that this batch is the last, so the exchange happens at the end of the window."""
    everything, mine = rank_batches(rank, world_size, 2)
    counted = Counted()
    accumulator = engine.GradientAccumulator(SGD(counted.model.parameters(), lr=0.1), 4, max_grad_norm=None)
    for index, batch in enumerate(mine):
        with accumulator.micro_batch(counted.model):
            accumulator.accumulate(mean_loss(counted.model, batch), counted.model, is_final_batch=index == 1)
    assert counted.exchanges == 0
    assert difference(flat(counted.model), expected_weights(everything, [4])) < 1e-6


def unequal_weights_on_unequal_ranks(rank: int) -> None:
    """Rank 0 holds most of each window's samples: weights make it the big batch all the same."""
    everything = make_batches([7, 1, 5, 2, 6, 3])
    mine = everything[rank::2]
    model = DistributedDataParallel(make_model())
    optimizer = SGD(model.parameters(), lr=0.1)
    accumulator = GradientAccumulator(GradientAccumulationConfig(accumulation_steps=2, gradient_clipping=None))
    for batch in mine:
        with accumulator.micro_batch(model):
            accumulator.accumulate_gradients(mean_loss(model, batch), model, optimizer, weight=len(batch[1]))
    accumulator.flush(model, optimizer)  # the third micro-batch is a window of its own
    assert difference(flat(model), expected_weights(everything, [4, 2])) < 1e-6


def sync_gradients_off_exchanges_every_time(rank: int, world_size: int) -> None:
    everything, mine = rank_batches(rank, world_size, 4)
    for sync, expected in ((True, 1), (False, 4)):
        counted = Counted()
        optimizer = SGD(counted.model.parameters(), lr=0.1)
        accumulator = GradientAccumulator(
            GradientAccumulationConfig(accumulation_steps=4, sync_gradients=sync, gradient_clipping=None)
        )
        for batch in mine:
            with accumulator.micro_batch(counted.model):
                accumulator.accumulate_gradients(mean_loss(counted.model, batch), counted.model, optimizer)
        assert counted.exchanges == expected
        assert difference(flat(counted.model), expected_weights(everything, [8])) < 1e-6


class UserTrainer:
    def __init__(self, model: Module) -> None:
        self.model = model
        self.accumulator: GradientAccumulator | None = None


def a_trainer_is_wrapped() -> None:
    trainer = integrate_with_distributed(UserTrainer(make_model()), GradientAccumulationConfig())
    assert isinstance(trainer.model, DistributedDataParallel)
    assert trainer.accumulator is not None


def test_ddp_over_two_processes() -> None:
    run_ranks(ddp_work)  # asserts inside


def test_models_are_equal_and_windows_cut_as_the_ranks_assume() -> None:
    """What the helpers above rely on."""
    model = make_model()
    assert torch.equal(flat(model), flat(copy.deepcopy(make_model())))
    assert [len(window) for window in windows(make_batches([1] * 5), 2)] == [2, 2, 1]
