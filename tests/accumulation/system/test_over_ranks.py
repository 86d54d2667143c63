"""Several ranks: one exchange per window, windows of equal length, one noise scale over all ranks."""

from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from onyx.accumulation.system import GradientAccumulationTrainer, GradientAccumulator
from tests.accumulation.exact import big_batch_weights, difference, flat, make_batches, make_model
from tests.accumulation.ranks import run_ranks
from tests.accumulation.system.common import Dial, Slope, config_of


def test_ranks_train_as_one() -> None:
    run_ranks(_trainer)


def _trainer(rank: int, world_size: int) -> None:
    everything = make_batches([6] * 10, torch.float64)
    expected = big_batch_weights(make_model(torch.float64), everything, 2 * world_size)
    model = make_model(torch.float64)
    # Only the second rank is short of memory, but both must cut alike: otherwise they deadlock.
    wrapped = DistributedDataParallel(model)
    exchanges: list[int] = []
    wrapped.register_comm_hook(exchanges, _counted)
    trainer = _trainer_of(wrapped, Dial(0.5 if rank == 0 else 0.9))
    result = trainer.train_epoch(everything[rank::world_size])
    assert result["optimization_steps"] == 3
    assert len(exchanges) == 2  # the last window of the epoch is short and is exchanged without a backward
    assert trainer.accumulator.micro_batch_size == 1
    assert difference(flat(model), expected) < 1e-12
    _noise(rank)


def _counted(
    exchanges: list[int],
    bucket: distributed.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    exchanges.append(bucket.index())
    return allreduce_hook(distributed.group.WORLD, bucket)  # type: ignore[arg-type]


def _trainer_of(wrapped: nn.Module, gauge: Dial) -> GradientAccumulationTrainer:
    config = config_of(accumulation_steps=2, effective_batch_size=6, strategy="memory_aware")
    trainer = GradientAccumulationTrainer(config, gauge=gauge)
    trainer.setup_training(wrapped, SGD(wrapped.parameters(), lr=0.1), nn.CrossEntropyLoss())
    return trainer


def _noise(rank: int) -> None:
    """Gradients 1, 3 on one rank and 5, 7 on the other: mean of squares 21, square of the mean 16."""
    model = Slope()
    wrapped: Any = DistributedDataParallel(model)
    accumulator = GradientAccumulator(
        config_of(mode="adaptive", adaptive_scaling=True, accumulation_steps=2), gauge=Dial(0.5)
    )
    accumulator.setup_training(wrapped, SGD(model.parameters(), lr=0.1), nn.MSELoss())
    for value in ((1.0, 3.0), (5.0, 7.0))[rank]:
        with accumulator.micro_batch():
            accumulator.accumulate_gradients(wrapped(torch.tensor(value)))
    # four micro-batches: true square (4·16 − 21)/3, variance (21 − 16)·4/3. A window counts one per rank: two at once.
    expected = ((21 - 16) * 4 / 3 / 2) / ((4 * 16 - 21) / 3)
    assert accumulator.noise.value is not None
    assert abs(accumulator.noise.value - expected) < 1e-6
    values = [torch.zeros(1) for _ in range(2)]
    distributed.all_gather(values, torch.tensor([accumulator.noise.value]))
    assert values[0] == values[1]
