"""The ranks of an attempt, and how they agree: one alone, or several that meet at votes and nowhere else."""

import os
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from datetime import timedelta

import torch
from torch import distributed
from torch._C._distributed_c10d import FileStore
from torch.distributed import ProcessGroup
from torch.nn import Parameter

from onyx.accumulation.exchange import Ballot, reduce_gradients, vote
from onyx.training.contract.attempt import Attempt
from onyx.training.contract.child_process import StopFlag

MEETING_SECONDS = 60.0
"""How long ranks wait for one another at the start, where one may never have come to be."""

PATIENCE = timedelta(days=1)
"""How long ranks wait for one another. A rank that died breaks its connections at once and one that is stuck is the
runner's to find, so all that this could end is a rank that cuts its share finer again and again."""


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This rank among all."""

    rank: int = 0
    size: int = 1
    gradients: ProcessGroup | None = None
    """Sums gradients: nccl on CUDA."""

    votes: ProcessGroup | None = None
    """Agrees, on the CPU."""

    @property
    def first(self) -> bool:
        """Whether this rank is the one that writes."""
        return self.rank == 0

    def vote(self, ballot: Ballot, parameters: Sequence[Parameter] = ()) -> Ballot:
        return ballot if self.size == 1 else vote(ballot, parameters, self.votes)

    def reduce(self, parameters: Sequence[Parameter]) -> None:
        if self.size > 1:
            reduce_gradients(parameters, self.gradients)

    def broadcast(self, text: str) -> str:
        """What rank 0 gives, on every rank: so that all follow one reading of a directory."""
        if self.size == 1:
            return text
        data = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8)
        length = torch.tensor([len(data)])
        distributed.broadcast(length, 0, group=self.votes)
        if not self.first:
            data = torch.empty(int(length), dtype=torch.uint8)
        distributed.broadcast(data, 0, group=self.votes)
        return bytes(data.tolist()).decode()


class StoppedWhileWaitingError(Exception):
    """This rank was told to stop before all were there: nothing has happened that is not on the disk."""


def join(attempt: Attempt, rank: int, device: torch.device, stop: StopFlag) -> Ranks:
    """Meet the other ranks at the attempt's rendezvous."""
    size = len(attempt.shares)
    if size == 1:
        return Ranks()
    store = FileStore(str(attempt.rendezvous.absolute()), size)
    _meet(store, rank, size, stop)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # ranks of an attempt live on one host
    distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=MEETING_SECONDS),
    )
    everyone = distributed.group.WORLD
    distributed.distributed_c10d._set_pg_timeout(PATIENCE, everyone)
    votes = distributed.new_group(backend="gloo", timeout=PATIENCE) if device.type == "cuda" else everyone
    return Ranks(rank=rank, size=size, gradients=everyone, votes=votes)


def _meet(store: FileStore, rank: int, size: int, stop: StopFlag) -> None:
    """Wait until all are there. torch would wait as patiently as for a vote, and deaf to being told to stop.

    All go on or none does: whoever counts first decides, rank 0 to go when all are there, anybody to stop.
    """
    end = time.monotonic() + MEETING_SECONDS
    everyone = [f"here-{each}" for each in range(size)]
    store.set(f"here-{rank}", "")
    while not store.check(["verdict"]):
        go = rank == 0 and store.check(everyone)
        if (go or stop.requested) and store.add("deciding", 1) == 1:
            store.set("verdict", "stop" if stop.requested else "go")
        if time.monotonic() > end:
            raise TimeoutError(f"not all of {size} ranks came within {MEETING_SECONDS:.0f} seconds")
        time.sleep(0.002)
    if store.get("verdict") == b"stop":
        raise StoppedWhileWaitingError


def leave(ranks: Ranks) -> None:
    if ranks.size > 1:
        distributed.destroy_process_group()


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """What a rank tells the others about its share."""

    budget: int
    """Padded tokens per micro-batch that this window was cut by."""

    loss: float = 0.0
    """Sum of the losses of its label tokens."""

    margin: float = 0.0
    """Of pairs: sum of their reward margins."""

    right: int = 0
    """How many of its label tokens, or pairs, the model had right."""

    micro_batches: int = 0
    widest: int = 0
    """Samples of its largest micro-batch."""

    retries: int = 0
    """How often its memory ran out in this window,"""

    in_backward: int = 0
    """and how often of these in backward."""

    peak: int = 0
    """The most bytes that it has held."""

    oversized: int = 0
    """Tokens of a sample that does not fit even alone; 0 when all do."""

    eager: int = 0
    """1 where its step is not compiled, although the plan compiles it."""

    config: int = 0
    """Number of a change of config, from rank 0; 0 for none."""

    accumulation_steps: int = 0
    """The change: 0 leaves it."""

    clipping: float = -1.0
    """The change: 0 means no clipping, below 0 leaves it."""

    def numbers(self) -> tuple[float, ...]:
        return tuple(float(number) for number in astuple(self))


def parse_reports(told: Sequence[float]) -> list[RankReport]:
    """What each rank told."""
    width = len(fields(RankReport))
    return [_told(told[start : start + width]) for start in range(0, len(told), width)]


def _told(numbers: Sequence[float]) -> RankReport:
    values = {
        field.name: number if field.type is float else int(number)
        for field, number in zip(fields(RankReport), numbers, strict=True)
    }
    return RankReport(**values)  # type: ignore[arg-type]
