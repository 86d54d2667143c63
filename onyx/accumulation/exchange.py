"""The exchange of training ranks: each runs its share of a window alone, then all vote and sum their gradients.

No collective runs inside forward or backward, so no rank waits in one that another rank never reaches: a rank that
runs out of memory cuts its share finer and runs it again while the others wait at the vote. Shares may be unequal or
empty, because every micro-batch is divided by the weight of the whole window.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup
from torch.nn import Parameter

BUCKET_BYTES = 32 << 20
"""Gradients are sent in buckets of at most this many bytes: the extra memory that an exchange takes."""


@dataclass(frozen=True, kw_only=True)
class Ballot:
    """What a rank reports at the end of its share. A flag that one rank sets holds for all."""

    failed: bool = False
    """This rank cannot go on: no rank steps."""

    stop: bool = False
    """End the job after this update, with the model it has by then."""

    pause: bool = False
    """Pause after this update."""

    numbers: tuple[float, ...] = ()
    """Numbers for the other ranks, as many from every rank. After the vote: those of all ranks, rank after rank."""


def vote(ballot: Ballot, parameters: Sequence[Parameter], group: ProcessGroup | None = None) -> Ballot:
    """Combine the ballots of all ranks, and agree which parameters have a gradient. `group` is a CPU (gloo) group.

    A parameter with a gradient on any rank gets zeros where it has none. One without any gradient stays None, because
    AdamW would move it on a zero gradient too.
    """
    flags = [float(flag) for flag in (ballot.failed, ballot.stop, ballot.pause)]
    present = [float(parameter.grad is not None) for parameter in parameters]
    mine = torch.tensor([*flags, *present, *ballot.numbers], dtype=torch.float64)
    ballots = [torch.empty_like(mine) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(ballots, mine, group=group)

    table = torch.stack(ballots)
    any_rank = table[:, : len(flags) + len(present)].amax(dim=0).bool().tolist()
    failed, stop, pause = any_rank[: len(flags)]
    for parameter, on_any_rank in zip(parameters, any_rank[len(flags) :], strict=True):
        # After a failure no rank steps, and the rank that failed may have no memory left for zeros.
        if on_any_rank and parameter.grad is None and not failed:
            parameter.grad = torch.zeros_like(parameter)
    numbers = tuple(table[:, len(any_rank) :].flatten().tolist())
    return Ballot(failed=failed, stop=stop, pause=pause, numbers=numbers)


def reduce_gradients(
    parameters: Sequence[Parameter],
    group: ProcessGroup | None = None,
    *,
    average: bool = False,
    bucket_bytes: int = BUCKET_BYTES,
) -> None:
    """Sum (or average) `.grad` over all ranks, in place. After a vote every rank has the same gradients."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    for bucket in buckets(gradients, bucket_bytes):
        if len(bucket) == 1 and bucket[0].is_contiguous():
            flat = bucket[0].view(-1)
        else:
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
        # A large gradient is sent in slices of its own storage, without a copy.
        for piece in flat.split(max(1, bucket_bytes // flat.element_size())):
            distributed.all_reduce(piece, group=group)
        if average:
            flat /= distributed.get_world_size(group)
        _write_back(flat, bucket)


def buckets(gradients: Iterable[Tensor], bucket_bytes: int) -> Iterator[list[Tensor]]:
    """Consecutive gradients of one dtype and device, up to `bucket_bytes` together. A larger one is a bucket alone."""
    bucket: list[Tensor] = []
    space_left = bucket_bytes
    for gradient in gradients:
        size = gradient.numel() * gradient.element_size()
        alike = not bucket or (bucket[0].dtype, bucket[0].device) == (gradient.dtype, gradient.device)
        if bucket and (size > space_left or not alike):
            yield bucket
            bucket, space_left = [], bucket_bytes
        bucket.append(gradient)
        space_left -= size
    if bucket:
        yield bucket


def _write_back(flat: Tensor, bucket: Sequence[Tensor]) -> None:
    if flat.data_ptr() == bucket[0].data_ptr():
        return
    pieces = flat.split([gradient.numel() for gradient in bucket])
    torch._foreach_copy_(
        list(bucket), [piece.view_as(gradient) for piece, gradient in zip(pieces, bucket, strict=True)]
    )
