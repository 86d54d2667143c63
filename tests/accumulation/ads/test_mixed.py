from typing import Any

import pytest
import torch
from torch import nn

from onyx.accumulation.ads.config import GradientAccumulationConfig
from onyx.accumulation.ads.mixed import MixedPrecision
from onyx.accumulation.precision import Precision


class Fp16OnCpu(GradientAccumulationConfig):
    """Runs float16 on the CPU, as the default config does on an accelerator: the same code, only slower."""

    def precision(self, device: torch.device) -> Precision:
        return Precision.FP16 if self.mixed_precision and self.amp_enabled else Precision.FLOAT32


def test_saved_bytes_count_half_precision_tensors_kept_for_backward() -> None:
    layer = nn.Linear(4, 4)
    mixed = MixedPrecision(Fp16OnCpu())
    with mixed.measure_saved_bytes(), mixed.autocast():
        layer(torch.randn(3, 4)).relu().sum()
    # relu keeps its result (3 × 4) and the product its input (3 × 4), each number at 2 bytes less.
    assert mixed.bytes_saved == 2 * (12 + 12)
    assert mixed.stats()["memory_savings_gb"] == mixed.bytes_saved / 1e9
    assert mixed.stats()["autocast_enabled"] is True


def test_memory_efficient_keeps_no_copies_of_the_weights() -> None:
    weight = nn.Parameter(torch.randn(4, 4))
    casts: dict[bool, int] = {}
    for efficient in (True, False):
        mixed = MixedPrecision(Fp16OnCpu(amp_memory_efficient=efficient))
        seen: set[int] = set()

        def pack(tensor: torch.Tensor, seen: set[int] = seen) -> torch.Tensor:
            if tensor.dtype == torch.float16 and tensor.shape == (4, 4):
                seen.add(tensor.untyped_storage().data_ptr())
            return tensor

        with mixed.autocast(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            x = torch.randn(2, 4, requires_grad=True)
            kept = [(x @ weight).sum(), (x @ weight).sum()]
        casts[efficient] = len(seen)
        assert len(kept) == 2
    assert casts == {True: 2, False: 1}


@pytest.mark.parametrize("settings", [{"mixed_precision": False}, {"amp_enabled": False}])
def test_switched_off_it_counts_nothing(settings: dict[str, Any]) -> None:
    mixed = MixedPrecision(Fp16OnCpu(**settings))
    assert not mixed.enabled
    assert mixed.stats() == {}


def test_state_round_trip() -> None:
    mixed = MixedPrecision(Fp16OnCpu())
    mixed.overflows, mixed.underflows, mixed.seconds = 2, 1, 3.0
    other = MixedPrecision(Fp16OnCpu())
    other.load_state_dict(mixed.state_dict())
    assert (other.overflows, other.underflows, other.seconds) == (2, 1, 3.0)
