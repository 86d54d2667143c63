"""Real processes that train together over gloo on loopback."""

import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed, multiprocessing
from torch.multiprocessing.spawn import start_processes


def run_ranks(work: Callable[[int, int], None], world_size: int = 2) -> None:
    """Run `work(rank, world_size)` in `world_size` processes. A failed assertion in one of them fails the test."""
    # A fork server with torch imported forks each rank: a start takes milliseconds, and the server has no threads.
    multiprocessing.set_forkserver_preload(["torch.distributed", "torch.nn.parallel", "hypothesis"])
    with tempfile.TemporaryDirectory() as folder:
        start_processes(
            _rank,
            args=(work, world_size, Path(folder) / "rendezvous"),
            nprocs=world_size,
            start_method="forkserver",
        )


def _rank(rank: int, work: Callable[[int, int], None], world_size: int, rendezvous: Path) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=60),
    )
    try:
        work(rank, world_size)
    finally:
        distributed.destroy_process_group()
