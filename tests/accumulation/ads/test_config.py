import dataclasses
import math
from typing import Any

import pytest
import torch

from onyx.accumulation.precision import Precision
from onyx.server.features.ads.gradient_accumulation import GradientAccumulationConfig


def test_fields_and_defaults_in_the_documented_order() -> None:
    assert {field.name: field.default for field in dataclasses.fields(GradientAccumulationConfig)} == {
        "accumulation_steps": 4,
        "effective_batch_size": None,
        "target_batch_size": None,
        "max_memory_usage": 0.9,
        "memory_safety_margin": 0.1,
        "auto_adjust_batch_size": True,
        "sync_gradients": True,
        "gradient_scaling": True,
        "mixed_precision": True,
        "amp_enabled": True,
        "amp_dtype": torch.float16,
        "amp_init_scale": 2**16,
        "amp_memory_efficient": True,
        "log_accumulation": True,
        "log_memory_usage": True,
        "profile_accumulation": False,
        "gradient_clipping": 1.0,
        "warmup_steps": 0,
        "accumulation_scheduler": None,
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("accumulation_steps", value) for value in (0, -1, 1.5, math.nan, "4", None, True)],
        *[("effective_batch_size", value) for value in (0, -1, 2.5, "8")],
        *[("target_batch_size", value) for value in (0, -1, 2.5, "8")],
        *[("max_memory_usage", value) for value in (0, 1, -0.1, 1.1, math.nan, "0.9", None)],
        *[("memory_safety_margin", value) for value in (0, 1, -0.1, 1.1, math.nan, "0.1", None)],
        *[
            (flag, value)
            for flag in (
                "auto_adjust_batch_size",
                "sync_gradients",
                "gradient_scaling",
                "mixed_precision",
                "amp_enabled",
                "amp_memory_efficient",
                "log_accumulation",
                "log_memory_usage",
                "profile_accumulation",
            )
            for value in (1, "yes", None)
        ],
        *[("amp_dtype", value) for value in (torch.int8, torch.float64, "float16", None)],
        *[("amp_init_scale", value) for value in (0, -1, math.inf, math.nan, "64")],
        *[("gradient_clipping", value) for value in (0, -1.0, math.nan, math.inf, "1")],
        *[("warmup_steps", value) for value in (-1, 1.5, "3", None)],
        *[("accumulation_scheduler", value) for value in ("square", "", 3)],
    ],
)
def test_an_invalid_value_is_refused_with_the_name_of_its_field(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field} must be"):
        GradientAccumulationConfig(**{field: value})


@pytest.mark.parametrize(
    ("settings", "device", "expected"),
    [
        ({}, "cuda", Precision.FP16),
        ({"amp_dtype": torch.bfloat16}, "cuda", Precision.BF16),
        ({"amp_dtype": torch.float32}, "cuda", Precision.FLOAT32),
        ({"mixed_precision": False}, "cuda", Precision.FLOAT32),
        ({"amp_enabled": False}, "cuda", Precision.FLOAT32),
        ({}, "cpu", Precision.FLOAT32),
    ],
)
def test_precision_follows_the_switches_and_the_device(
    settings: dict[str, Any], device: str, expected: Precision
) -> None:
    assert GradientAccumulationConfig(**settings).precision(torch.device(device)) is expected
