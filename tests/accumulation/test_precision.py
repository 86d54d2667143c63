import pytest
import torch

from onyx.accumulation.precision import Precision, autocast, cpu_survives_bf16, grad_scaler, resolve

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_the_precision_follows_dtype_and_device() -> None:
    assert resolve(torch.float16, CUDA) is Precision.FP16
    assert resolve(torch.bfloat16, CUDA) is Precision.BF16
    assert resolve(torch.float32, CUDA) is Precision.FLOAT32
    assert resolve(torch.float16, CPU) is Precision.FLOAT32  # slower than float32 there


def test_bf16_on_the_cpu_is_tried_in_a_child_process_first() -> None:
    expected = Precision.BF16 if cpu_survives_bf16() else Precision.FLOAT32
    assert resolve(torch.bfloat16, CPU) is expected


def test_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match=r"torch\.float16, torch\.bfloat16 or torch\.float32"):
        resolve(torch.int8, CPU)


def test_autocast_runs_in_the_precision() -> None:
    a = torch.ones(2, 2)
    with autocast(Precision.FP16, CPU):
        assert (a @ a).dtype == torch.float16
    with autocast(Precision.FLOAT32, CPU):
        assert (a @ a).dtype == torch.float32


def test_only_fp16_is_scaled() -> None:
    assert grad_scaler(Precision.FP16, CPU, init_scale=8.0).get_scale() == 8.0
    assert not grad_scaler(Precision.FLOAT32, CPU).is_enabled()
    assert not grad_scaler(Precision.BF16, CPU).is_enabled()
