import math
from typing import Any

import pytest

from onyx.accumulation.system import AccumulationMode, AccumulationStrategy, GradientAccumulationConfig


def test_the_documented_defaults() -> None:
    config = GradientAccumulationConfig()
    assert vars(config) == {
        "accumulation_steps": 4,
        "mode": AccumulationMode.STANDARD,
        "strategy": AccumulationStrategy.UNIFORM,
        "effective_batch_size": 64,
        "target_batch_size": 256,
        "memory_threshold": 0.8,
        "gradient_scaling": True,
        "loss_scaling": True,
        "adaptive_scaling": False,
        "progressive_scaling": False,
        "selective_accumulation": False,
        "accumulation_schedule": [],
        "layer_accumulation_weights": {},
        "parameter_group_weights": {},
        "memory_monitoring": True,
        "gradient_clipping": True,
        "clipping_norm": 1.0,
        "nan_handling": True,
        "checkpoint_frequency": 1,
        "logging_frequency": 10,
        "validation_frequency": 1,
        "save_accumulation_state": True,
        "restore_accumulation_state": True,
    }


def test_the_documented_names() -> None:
    assert [mode.value for mode in AccumulationMode] == [
        "standard",
        "efficient",
        "adaptive",
        "progressive",
        "selective",
    ]
    assert [strategy.value for strategy in AccumulationStrategy] == [
        "uniform",
        "layer_wise",
        "parameter_groups",
        "adaptive_layers",
        "memory_aware",
    ]


def test_names_may_be_strings() -> None:
    config = GradientAccumulationConfig(mode="selective", strategy="layer_wise")  # type: ignore[arg-type]
    assert config.mode is AccumulationMode.SELECTIVE
    assert config.strategy is AccumulationStrategy.LAYER_WISE


def test_two_configs_share_no_list_or_dict() -> None:
    one, other = GradientAccumulationConfig(), GradientAccumulationConfig()
    one.layer_accumulation_weights["weight"] = 0.5
    assert other.layer_accumulation_weights == {}


COUNTS = [
    "accumulation_steps",
    "effective_batch_size",
    "target_batch_size",
    "checkpoint_frequency",
    "logging_frequency",
    "validation_frequency",
]
FLAGS = [
    "gradient_scaling",
    "loss_scaling",
    "adaptive_scaling",
    "progressive_scaling",
    "selective_accumulation",
    "memory_monitoring",
    "gradient_clipping",
    "nan_handling",
    "save_accumulation_state",
    "restore_accumulation_state",
]


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [0, -1, 2.5, math.nan, "4", True, None])
def test_counts_are_whole_numbers_from_one(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must be >= 1"):
        GradientAccumulationConfig(**{name: value})


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("value", [1, 0, "yes", None])
def test_flags_are_true_or_false(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must be True or False"):
        GradientAccumulationConfig(**{name: value})


@pytest.mark.parametrize("value", [0, 1, -0.1, 80, math.nan, "0.8", None])
def test_the_threshold_is_a_share(value: Any) -> None:
    with pytest.raises(ValueError, match="memory_threshold must be between 0 and 1"):
        GradientAccumulationConfig(memory_threshold=value)


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, "1", True, None])
def test_the_clipping_norm_is_positive(value: Any) -> None:
    with pytest.raises(ValueError, match="clipping_norm must be > 0 and finite"):
        GradientAccumulationConfig(clipping_norm=value)


@pytest.mark.parametrize("name", ["mode", "strategy"])
@pytest.mark.parametrize("value", ["fast", "", None, 3])
def test_unknown_names_are_refused_with_the_known_ones(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must be one of (standard|uniform), "):
        GradientAccumulationConfig(**{name: value})


@pytest.mark.parametrize("value", [[2, 0], [2, -4], [2.5], ["4"], "24", 4, None, [True]])
def test_a_schedule_is_a_list_of_lengths(value: Any) -> None:
    with pytest.raises(ValueError, match="accumulation_schedule"):
        GradientAccumulationConfig(mode=AccumulationMode.PROGRESSIVE, accumulation_schedule=value)


@pytest.mark.parametrize("value", [[("weight", 1.0)], None, {"weight": -1}, {"weight": math.nan}, {1: 1.0}, {"": 1}])
def test_layer_weights_are_numbers_by_name(value: Any) -> None:
    with pytest.raises(ValueError, match=r"layer_accumulation_weights|the weight of weight"):
        GradientAccumulationConfig(layer_accumulation_weights=value)


@pytest.mark.parametrize("value", [{"first": 1.0}, {"group_": 1.0}, {"group_x": 1.0}, {"group_0": "1"}, 3])
def test_group_weights_are_numbers_by_group(value: Any) -> None:
    with pytest.raises(ValueError, match="group"):
        GradientAccumulationConfig(parameter_group_weights=value)


def test_progressive_mode_needs_a_schedule_or_progressive_scaling() -> None:
    with pytest.raises(ValueError, match="needs an accumulation_schedule"):
        GradientAccumulationConfig(mode=AccumulationMode.PROGRESSIVE)
    GradientAccumulationConfig(mode=AccumulationMode.PROGRESSIVE, progressive_scaling=True)
    GradientAccumulationConfig(mode=AccumulationMode.PROGRESSIVE, accumulation_schedule=[2])
