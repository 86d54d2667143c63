import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from onyx.accumulation.loss_scaling import (
    DynamicLossScaler,
    DynamicLossScalerConfig,
    DynamicScaling,
    TorchScaling,
    Unscaled,
    scaling_for,
)

NAN, INF = math.nan, math.inf


def test_defaults_are_the_documented_ones() -> None:
    config = DynamicLossScalerConfig()
    assert config == DynamicLossScalerConfig(2**15, 2.0, 0.5, 2000, 1.0, 2**24)
    scaler = DynamicLossScaler()
    assert (scaler.scale, scaler.steps_since_growth) == (32768.0, 0)
    assert scaler.config == config
    assert isinstance(DynamicLossScaler(DynamicLossScalerConfig(initial_scale=4)).scale, float)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"min_scale": 0}, "min_scale must be > 0"),
        ({"min_scale": -1.0}, "min_scale must be > 0"),
        ({"min_scale": NAN}, "min_scale"),
        ({"min_scale": 4, "initial_scale": 2}, "initial_scale must be >= 4"),
        ({"initial_scale": 0}, "initial_scale"),
        ({"initial_scale": NAN}, "initial_scale"),
        ({"initial_scale": INF, "max_scale": INF}, "initial_scale"),
        ({"initial_scale": "big"}, "initial_scale"),
        ({"initial_scale": True}, "initial_scale"),
        ({"initial_scale": 8, "max_scale": 4}, "max_scale must be >= 8"),
        ({"max_scale": INF}, "max_scale .*finite"),
        ({"max_scale": None}, "max_scale"),
        ({"growth_factor": 1}, "growth_factor must be > 1"),
        ({"growth_factor": 0.5}, "growth_factor must be > 1"),
        ({"growth_factor": INF}, "growth_factor"),
        ({"backoff_factor": 0}, "backoff_factor must be between 0 and 1"),
        ({"backoff_factor": 1}, "backoff_factor must be between 0 and 1"),
        ({"backoff_factor": NAN}, "backoff_factor"),
        ({"growth_interval": 0}, "growth_interval must be >= 1"),
        ({"growth_interval": 2.5}, "growth_interval"),
        ({"growth_interval": True}, "growth_interval"),
    ],
)
def test_config_refuses_invalid_values(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        DynamicLossScalerConfig(**fields)


@pytest.mark.parametrize("config", [{}, 2.0, "x", DynamicLossScalerConfig])
def test_constructor_refuses_another_config(config: Any) -> None:
    with pytest.raises(ValueError, match="DynamicLossScalerConfig or None"):
        DynamicLossScaler(config)


def test_scale_loss_takes_numbers_and_arrays() -> None:
    scaler = DynamicLossScaler(DynamicLossScalerConfig(initial_scale=8))
    assert scaler.scale_loss(0.5) == 4.0
    assert scaler.scale_loss(np.float32(2)) == 16.0
    assert scaler.scale_loss(np.array([1.0, 2.0])).tolist() == [8.0, 16.0]
    loss = torch.tensor(3.0, requires_grad=True)
    scaler.scale_loss(loss).backward()
    assert loss.grad == 8.0


@pytest.mark.parametrize("loss", [None, "1", [1.0], torch.tensor(1)])
def test_scale_loss_refuses_anything_but_a_number_or_array(loss: Any) -> None:
    with pytest.raises(TypeError, match="number or a floating-point array"):
        DynamicLossScaler().scale_loss(loss)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=5), st.integers(0, 24))
def test_unscale_divides_every_leaf_and_leaves_the_argument_alone(values: list[float], power: int) -> None:
    scaler = DynamicLossScaler(DynamicLossScalerConfig(initial_scale=2.0**power))
    tree = {"a": torch.tensor(values), "b": [np.array(values), None]}
    before = repr(tree)
    unscaled = scaler.unscale_gradients(tree)
    assert torch.equal(unscaled["a"], torch.tensor(values) / 2.0**power)
    assert np.array_equal(unscaled["b"][0], np.array(values) / 2.0**power)
    assert unscaled["b"][1] is None
    assert repr(tree) == before


@pytest.mark.parametrize("half", [torch.tensor([1e-3], dtype=torch.float16), np.array([1e-3], np.float16)])
def test_unscaled_half_precision_does_not_vanish_again(half: Any) -> None:
    """1e-3 / 32768 is below half precision's smallest number: that it was scaled would have been for nothing."""
    unscaled = DynamicLossScaler().unscale_gradients([half])[0]
    assert str(unscaled.dtype).endswith("float32")
    assert float(unscaled[0]) == pytest.approx(1e-3 / 32768, rel=1e-3)


def test_unscale_keeps_no_graph() -> None:
    weight = torch.ones(2, requires_grad=True)
    assert not DynamicLossScaler().unscale_gradients(weight * 2).requires_grad


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_check_overflow_finds_one_bad_number_anywhere(bad: float) -> None:
    scaler = DynamicLossScaler()
    good = {"a": torch.ones(3), "b": (np.ones(2), None)}
    assert scaler.check_overflow(good) is False
    assert scaler.check_overflow({**good, "c": torch.tensor([[0.0, bad]])}) is True
    assert scaler.check_overflow({**good, "c": [np.array(bad)]}) is True


@pytest.mark.parametrize("tree", [{}, [], (), {"a": []}, [None], torch.ones(0)])
def test_an_empty_tree_has_no_overflow(tree: Any) -> None:
    assert DynamicLossScaler().check_overflow(tree) is False


@pytest.mark.parametrize("call", [DynamicLossScaler().check_overflow, DynamicLossScaler().unscale_gradients])
@pytest.mark.parametrize("leaf", [1.0, "x", torch.tensor([1])])
def test_other_leaves_are_refused(call: Any, leaf: Any) -> None:
    with pytest.raises(TypeError, match=r"the leaf at \['a'\]"):
        call({"a": leaf})


def test_overflow_backs_off_down_to_the_minimum_and_restarts_the_count() -> None:
    scaler = DynamicLossScaler(DynamicLossScalerConfig(8, growth_interval=3, min_scale=3.0))
    scaler.update_scale(False)
    assert scaler.steps_since_growth == 1
    scaler.update_scale(True)
    assert (scaler.scale, scaler.steps_since_growth) == (4.0, 0)
    scaler.update_scale(True)
    assert (scaler.scale, scaler.steps_since_growth) == (3.0, 0)


def test_growth_comes_on_reaching_the_interval_and_stops_at_the_maximum() -> None:
    scaler = DynamicLossScaler(DynamicLossScalerConfig(8, growth_interval=3, max_scale=20))
    seen = []
    for _ in range(7):
        scaler.update_scale(False)
        seen.append((scaler.scale, scaler.steps_since_growth))
    assert seen == [(8.0, 1), (8.0, 2), (16.0, 0), (16.0, 1), (16.0, 2), (20.0, 0), (20.0, 1)]


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 4))
def test_the_scale_follows_the_documented_rule(overflows: list[bool], interval: int) -> None:
    config = DynamicLossScalerConfig(16, 3.0, 0.25, interval, 2.0, 500.0)
    scaler, scale, quiet = DynamicLossScaler(config), 16.0, 0
    for overflow in overflows:
        scaler.update_scale(overflow)
        quiet = 0 if overflow else quiet + 1
        if overflow:
            scale = max(scale / 4, 2.0)
        elif quiet == interval:
            scale, quiet = min(scale * 3, 500.0), 0
        assert (scaler.scale, scaler.steps_since_growth) == (scale, quiet)


@pytest.mark.parametrize("overflow", [None, 1, 0.0, "yes", torch.tensor(True), np.True_])
def test_update_scale_refuses_anything_but_a_bool(overflow: Any) -> None:
    with pytest.raises(ValueError, match="overflow_detected must be True or False"):
        DynamicLossScaler().update_scale(overflow)


@given(st.lists(st.booleans(), max_size=20), st.lists(st.booleans(), max_size=20))
def test_a_state_goes_through_json_and_continues(before: list[bool], after: list[bool]) -> None:
    config = DynamicLossScalerConfig(growth_interval=4)
    scaler, other = DynamicLossScaler(config), DynamicLossScaler(config)
    for overflow in before:
        scaler.update_scale(overflow)
    other.load_state_dict(json.loads(json.dumps(scaler.state_dict())))
    for overflow in after:
        scaler.update_scale(overflow)
        other.update_scale(overflow)
    assert other.state_dict() == scaler.state_dict()


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (None, "keys"),
        ({}, "keys"),
        ({"scale": 2.0}, "keys"),
        ({"scale": 2.0, "steps_since_growth": 0, "more": 1}, "keys"),
        ({"scale": 0.5, "steps_since_growth": 0}, "scale must be >= 1"),
        ({"scale": 2.0**25, "steps_since_growth": 0}, "scale must be <= max_scale"),
        ({"scale": NAN, "steps_since_growth": 0}, "scale"),
        ({"scale": "2", "steps_since_growth": 0}, "scale"),
        ({"scale": 2.0, "steps_since_growth": -1}, "steps_since_growth must be >= 0"),
        ({"scale": 2.0, "steps_since_growth": 1.5}, "steps_since_growth"),
        ({"scale": 2.0, "steps_since_growth": 2000}, "steps_since_growth must be < growth_interval"),
    ],
)
def test_a_bad_state_is_refused_and_changes_nothing(state: Any, says: str) -> None:
    scaler = DynamicLossScaler()
    scaler.update_scale(False)
    before = scaler.state_dict()
    with pytest.raises(ValueError, match=says):
        scaler.load_state_dict(state)
    assert scaler.state_dict() == before


def gradient_of(loss: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(loss, weight)[0]


def test_defect_unscaling_an_unscaled_loss_makes_gradients_32768_times_too_small() -> None:
    """The document's own loop: it differentiates the loss, scales it only afterwards, and unscales the gradients."""
    scaler, weight = DynamicLossScaler(), torch.tensor([1.0, 2.0], requires_grad=True)
    true = gradient_of((weight**2).sum(), weight)

    wrong = scaler.unscale_gradients(gradient_of((weight**2).sum(), weight))
    right = scaler.unscale_gradients(gradient_of(scaler.scale_loss((weight**2).sum()), weight))

    assert torch.equal(wrong * 32768, true)
    assert torch.equal(right, true)


def test_scaling_saves_a_half_precision_gradient_that_would_vanish() -> None:
    scaler, weight = DynamicLossScaler(), torch.ones(2, dtype=torch.float16, requires_grad=True)

    def loss() -> torch.Tensor:
        return (weight.float() * 1e-8).sum()  # its gradient is below float16's smallest number

    assert gradient_of(loss(), weight).abs().max() == 0
    saved = scaler.unscale_gradients(gradient_of(scaler.scale_loss(loss()), weight))
    assert saved.tolist() == pytest.approx([1e-8, 1e-8], rel=1e-3)


def test_each_scaler_gets_its_scaling() -> None:
    assert isinstance(scaling_for(None), Unscaled)
    assert isinstance(scaling_for(torch.amp.GradScaler("cpu")), TorchScaling)
    assert isinstance(scaling_for(DynamicLossScaler()), DynamicScaling)
    with pytest.raises(ValueError, match="scaler must be a torch GradScaler, a DynamicLossScaler or None"):
        scaling_for(object())


def test_the_scale_can_be_read() -> None:
    assert scaling_for(None).factor() == 1.0
    assert scaling_for(torch.amp.GradScaler("cpu", init_scale=4.0)).factor() == 4.0
    assert scaling_for(DynamicLossScaler(DynamicLossScalerConfig(initial_scale=2.0))).factor() == 2.0
