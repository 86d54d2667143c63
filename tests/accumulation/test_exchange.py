import copy

import torch
from torch import nn
from torch.optim import AdamW

from onyx.accumulation.boundary import close
from onyx.accumulation.exchange import Ballot, buckets, reduce_gradients, vote
from onyx.accumulation.window import Window
from tests.accumulation.exact import TOLERANCE, difference, flat, join, make_batches, make_model, mean_loss, sum_loss
from tests.accumulation.ranks import run_ranks


def test_consecutive_gradients_share_a_bucket_up_to_the_limit() -> None:
    gradients = [torch.zeros(size) for size in (1, 2, 3, 10, 1)]
    found = [[len(gradient) for gradient in bucket] for bucket in buckets(gradients, bucket_bytes=16)]
    assert found == [[1, 2], [3], [10], [1]]


def test_dtypes_do_not_share_a_bucket() -> None:
    gradients = [torch.zeros(1), torch.zeros(1, dtype=torch.float64)]
    assert len(list(buckets(gradients, bucket_bytes=1000))) == 2


def shares(rank: int, world_size: int) -> None:
    for dtype in (torch.float32, torch.float64):
        unequal_shares_are_the_big_batch(rank, dtype)
    an_empty_share_reduces_zeros(rank)
    without_any_gradient_there_is_none(rank)
    one_answer_holds_for_all(rank)
    any_bucket_gives_the_same_sum(rank, world_size)


def unequal_shares_are_the_big_batch(rank: int, dtype: torch.dtype) -> None:
    """Rank 0 runs five micro-batches of every window, rank 1 one."""
    batches = make_batches([3, 1, 5, 2, 7, 4], dtype)
    model = make_model(dtype)
    big = copy.deepcopy(model)
    optimizer, big_optimizer = (AdamW(m.parameters(), lr=1e-3, weight_decay=0.1) for m in (model, big))
    parameters = list(model.parameters())
    weight = sum(len(y) for _, y in batches)
    share = batches[:5] if rank == 0 else batches[5:]
    for _ in range(3):
        window = Window(length=len(share), weight=weight)
        for batch in share:
            window.take(sum_loss(model, batch), len(batch[1]), reduction="sum").backward()
        assert not vote(Ballot(), parameters).failed
        reduce_gradients(parameters)
        ours = close(window, optimizer, max_norm=1.0)

        big_window = Window(length=1)
        big_window.take(mean_loss(big, join(batches))).backward()
        theirs = close(big_window, big_optimizer, max_norm=1.0)
        assert abs(ours.norm - theirs.norm) <= 10 * TOLERANCE[dtype]
    assert difference(flat(model), flat(big)) <= TOLERANCE[dtype]


def an_empty_share_reduces_zeros(rank: int) -> None:
    layer = nn.Linear(2, 1)
    with torch.no_grad():
        layer.weight.fill_(1.0)
    if rank == 0:
        layer(torch.ones(1, 2)).sum().backward()
    vote(Ballot(), list(layer.parameters()))
    reduce_gradients(list(layer.parameters()))
    assert layer.weight.grad is not None
    assert torch.equal(layer.weight.grad, torch.ones(1, 2))


def without_any_gradient_there_is_none(rank: int) -> None:
    """None everywhere stays None: a zero gradient would let AdamW's weight decay move the parameter."""
    layer = nn.Linear(2, 1)
    layer.weight.grad = torch.ones(1, 2)
    vote(Ballot(), list(layer.parameters()))
    assert layer.bias.grad is None


def one_answer_holds_for_all(rank: int) -> None:
    assert vote(Ballot(failed=rank == 1), []) == Ballot(failed=True)
    assert vote(Ballot(stop=rank == 0, pause=rank == 1), []) == Ballot(stop=True, pause=True)
    assert vote(Ballot(), []) == Ballot()
    layer = nn.Linear(2, 1)
    numbers = vote(Ballot(numbers=(rank + 0.1, 2.0**50)), list(layer.parameters())).numbers
    assert numbers == (0.1, 2.0**50, 1.1, 2.0**50)


def any_bucket_gives_the_same_sum(rank: int, world_size: int) -> None:
    for bucket_bytes in (4, 64, 1 << 20):
        parameters = [nn.Parameter(torch.zeros(size)) for size in (3, 50, 1)]
        odd = nn.Parameter(torch.zeros(4, 2))
        odd.grad = torch.arange(8.0).reshape(2, 4).t() + rank  # not contiguous
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, rank + 1.0)
        reduce_gradients([*parameters, odd], bucket_bytes=bucket_bytes)
        for parameter in parameters:
            assert parameter.grad is not None
            assert torch.equal(parameter.grad, torch.full_like(parameter, 3.0))
        assert torch.equal(odd.grad, 2 * torch.arange(8.0).reshape(2, 4).t() + 1)


def test_two_processes_with_unequal_shares() -> None:
    run_ranks(shares)  # asserts inside
