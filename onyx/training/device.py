"""Getting a rank's device ready, before anything runs on it."""

import os

import torch

from onyx.memory.heap import roomy_heap, steady_heap
from onyx.training.attempt import Share


def device_of(share: Share) -> torch.device:
    """A rank that is shown one card by its own name has only that one: number 0."""
    if not share.device.startswith("cuda"):
        return torch.device("cpu")
    return torch.device("cuda", 0) if share.uuid is not None else torch.device(share.device)


def ready_device(share: Share, *, deterministic: bool) -> None:
    """Threads, visibility and whatever else decides bits."""
    torch.set_num_threads(share.threads)
    if not share.device.startswith("cuda"):
        roomy_heap() if share.heap == "roomy" else steady_heap()
        return
    if share.uuid is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = share.uuid
    torch.set_float32_matmul_precision("highest")  # TF32 only if asked
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.accelerator.set_device_index(device_of(share).index or 0)
