"""The ranks of an attempt: one alone, or several processes that exchange data at votes and nowhere else."""

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

RENDEZVOUS_SECONDS = 60.0
"""How long ranks wait for one another at the start, where one may not have started at all."""

VOTE_TIMEOUT = timedelta(days=1)
"""How long ranks wait at a vote. The connections of a dead rank break at once, and the runner ends a rank that hangs:
a shorter time could only end a rank that still cuts its share finer."""


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This rank among all ranks of the attempt."""

    rank: int = 0
    size: int = 1
    gradients: ProcessGroup | None = None
    """Sums gradients. NCCL on CUDA."""

    votes: ProcessGroup | None = None
    """Exchanges votes, on the CPU."""

    @property
    def first(self) -> bool:
        """Whether this rank is rank 0, the only one that writes files."""
        return self.rank == 0

    def vote(self, ballot: Ballot, parameters: Sequence[Parameter] = ()) -> Ballot:
        return ballot if self.size == 1 else vote(ballot, parameters, self.votes)

    def reduce(self, parameters: Sequence[Parameter]) -> None:
        if self.size > 1:
            reduce_gradients(parameters, self.gradients)

    def broadcast(self, text: str) -> str:
        """Rank 0's text, on every rank: all follow one reading of a directory."""
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
    """A rank was asked to stop before all had started. There is nothing to save."""


def join(attempt: Attempt, rank: int, device: torch.device, stop: StopFlag) -> Ranks:
    """Meet the other ranks at the attempt's rendezvous."""
    size = len(attempt.shares)
    if size == 1:
        return Ranks()
    store = FileStore(str(attempt.rendezvous.absolute()), size)
    _rendezvous(store, rank, size, stop)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # ranks of an attempt live on one host
    distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=RENDEZVOUS_SECONDS),
    )
    world = distributed.group.WORLD
    distributed.distributed_c10d._set_pg_timeout(VOTE_TIMEOUT, world)
    votes = distributed.new_group(backend="gloo", timeout=VOTE_TIMEOUT) if device.type == "cuda" else world
    return Ranks(rank=rank, size=size, gradients=world, votes=votes)


def _rendezvous(store: FileStore, rank: int, size: int, stop: StopFlag) -> None:
    """Wait until all ranks are here. torch would wait as long as for a vote and could not be asked to stop.

    All ranks go on or none does. The first rank to raise the counter decides: rank 0 may decide to go once all are
    here, every rank may decide to stop.
    """
    end = time.monotonic() + RENDEZVOUS_SECONDS
    all_here = [f"here-{each}" for each in range(size)]
    store.set(f"here-{rank}", "")
    while not store.check(["verdict"]):
        go = rank == 0 and store.check(all_here)
        if (go or stop.requested) and store.add("deciding", 1) == 1:
            store.set("verdict", "stop" if stop.requested else "go")
        if time.monotonic() > end:
            raise TimeoutError(f"not all of {size} ranks came within {RENDEZVOUS_SECONDS:.0f} seconds")
        time.sleep(0.002)
    if store.get("verdict") == b"stop":
        raise StoppedWhileWaitingError


def leave(ranks: Ranks) -> None:
    if ranks.size > 1:
        distributed.destroy_process_group()


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """What a rank reports to the others about its share. In a vote it is a tuple of numbers."""

    budget: int
    """Padded tokens per micro-batch by which the share was cut."""

    loss: float = 0.0
    """Sum of the losses of its label tokens."""

    margin: float = 0.0
    """Sum of the reward margins of its pairs."""

    correct: int = 0
    """How many of its label tokens, or pairs, the model had right."""

    micro_batches: int = 0
    widest: int = 0
    """Samples of its largest micro-batch."""

    retries: int = 0
    """How often its memory ran out in this share."""

    in_backward: int = 0
    """How many of the retries were in backward."""

    peak: int = 0
    """The most bytes that it has allocated."""

    oversized: int = 0
    """Tokens of a sample that does not fit even alone; 0 when all fit."""

    eager: int = 0
    """1 when its step is not compiled although the plan compiles it."""

    config: int = 0
    """Number of a change of config, from rank 0; 0 for none."""

    accumulation_steps: int = 0
    """The change's value; 0 for no change."""

    clipping: float = -1.0
    """The change's value; 0 for no clipping, below 0 for no change."""

    def numbers(self) -> tuple[float, ...]:
        return tuple(float(number) for number in astuple(self))


def parse_reports(numbers: Sequence[float]) -> list[RankReport]:
    """The report of each rank."""
    width = len(fields(RankReport))
    return [_parse_report(numbers[start : start + width]) for start in range(0, len(numbers), width)]


def _parse_report(numbers: Sequence[float]) -> RankReport:
    values = {
        field.name: number if field.type is float else int(number)
        for field, number in zip(fields(RankReport), numbers, strict=True)
    }
    return RankReport(**values)  # type: ignore[arg-type]
