import pytest
import torch

from onyx.accumulation.loss_scaler import DynamicLossScaler, DynamicLossScalerConfig
from onyx.accumulation.scaling import DynamicScaling, TorchScaling, Unscaled, scaling_for


def test_each_scaler_finds_its_shape() -> None:
    assert isinstance(scaling_for(None), Unscaled)
    assert isinstance(scaling_for(torch.amp.GradScaler("cpu")), TorchScaling)
    assert isinstance(scaling_for(DynamicLossScaler()), DynamicScaling)
    with pytest.raises(ValueError, match="scaler must be a torch GradScaler, a DynamicLossScaler or None"):
        scaling_for(object())


def test_the_scale_can_be_read() -> None:
    assert scaling_for(None).factor() == 1.0
    assert scaling_for(torch.amp.GradScaler("cpu", init_scale=4.0)).factor() == 4.0
    assert scaling_for(DynamicLossScaler(DynamicLossScalerConfig(initial_scale=2.0))).factor() == 2.0
