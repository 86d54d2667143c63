"""The functional accumulator with torch and NumPy."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from onyx.accumulation import functional, loss_scaling
from onyx.accumulation.functional import (
    DynamicLossScaler,
    DynamicLossScalerConfig,
    GradientAccumulator,
    GradientAccumulatorConfig,
)

Grads = dict[str, torch.Tensor]
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}


def accumulator(steps: int = 4, normalize: bool = True, **kwargs: Any) -> GradientAccumulator:
    return GradientAccumulator(GradientAccumulatorConfig(steps, normalize), **kwargs)


def two_layers(dtype: torch.dtype) -> Grads:
    return {"first": torch.randn(5, 7, dtype=dtype), "second": torch.randn(7, 1, dtype=dtype)}


def mean_loss(weights: Grads, x: torch.Tensor) -> torch.Tensor:
    return ((x @ weights["first"]).tanh() @ weights["second"] - 2).square().mean()


def gradients(weights: Grads, x: torch.Tensor) -> Grads:
    return torch.func.grad(mean_loss)(weights, x)  # type: ignore[no-any-return]


def relative_difference(found: Grads, wanted: Grads) -> float:
    a, b = (torch.cat([tree[key].flatten() for key in sorted(tree)]) for tree in (found, wanted))
    return float((a - b).norm() / b.norm())


@given(
    dtype=st.sampled_from([torch.float32, torch.float64]),
    steps=st.integers(1, 16),
    taken=st.integers(1, 16),
    size=st.integers(1, 4),
    seed=st.integers(0, 2**16),
)
def test_the_mean_over_equal_micro_batches_is_the_gradient_of_the_big_batch(
    dtype: torch.dtype, steps: int, taken: int, size: int, seed: int
) -> None:
    """Also for a short window (taken < steps), whose mean is over what came, and for a long one."""
    torch.manual_seed(seed)
    weights, x = two_layers(dtype), torch.randn(taken * size, 5, dtype=dtype)
    window = accumulator(steps)
    for micro_batch in x.split(size):
        window.accumulate(gradients(weights, micro_batch))
    assert window.current_step == taken
    assert window.should_update(taken) == (taken >= steps)
    assert relative_difference(window.get_gradients(), gradients(weights, x)) <= TOLERANCE[dtype]


@given(st.integers(1, 8), st.integers(1, 8), st.sampled_from([np.float32, np.float64]))
def test_numpy_means_and_sums(steps: int, taken: int, dtype: type) -> None:
    generator = np.random.default_rng(steps * 10 + taken)
    parts: list[dict[str, Any]] = [
        {"w": [generator.normal(3, 1, (2, 3)).astype(dtype)], "b": None} for _ in range(taken)
    ]
    mean, total = accumulator(steps), accumulator(steps, normalize=False)
    for part in parts:
        mean.accumulate(part)
        total.accumulate(part)
    wanted = np.sum([part["w"][0] for part in parts], axis=0, dtype=np.float64)
    tolerance = 1e-6 if dtype is np.float32 else 1e-12
    np.testing.assert_allclose(mean.get_gradients()["w"][0], wanted / taken, rtol=tolerance)
    np.testing.assert_allclose(total.get_gradients()["w"][0], wanted, rtol=tolerance)


arrays = st.sampled_from([torch.full((2,), 3.0), np.full((1, 2), 3.0), torch.tensor(3.0), np.array(3.0)]) | st.none()
trees = st.recursive(
    arrays,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text("abc", max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
).filter(lambda tree: tree is not None)


@given(trees, st.integers(1, 5))
def test_any_nesting_and_mix_comes_back_in_its_shape(tree: Any, taken: int) -> None:
    window = accumulator(taken)
    for _ in range(taken):
        window.accumulate(tree)
    assert repr(window.get_gradients()) == repr(tree)  # the mean of equal gradients is each of them


def test_defaults_and_first_state() -> None:
    assert GradientAccumulatorConfig() == GradientAccumulatorConfig(accumulation_steps=1, normalize_gradients=True)
    config = GradientAccumulatorConfig(3)
    window = GradientAccumulator(config)
    assert window.config is config
    assert window.accumulated_grads is None
    assert window.current_step == 0


@pytest.mark.parametrize("steps", [0, -1, 1.5, 4.0, "4", None, True, float("nan")])
def test_steps_must_be_a_whole_number(steps: Any) -> None:
    with pytest.raises(ValueError, match="accumulation_steps must be >= 1"):
        GradientAccumulatorConfig(accumulation_steps=steps)


@pytest.mark.parametrize("normalize", [1, None, "yes"])
def test_normalize_must_be_a_bool(normalize: Any) -> None:
    with pytest.raises(ValueError, match="normalize_gradients must be True or False"):
        GradientAccumulatorConfig(normalize_gradients=normalize)


@pytest.mark.parametrize("config", [None, 4, {"accumulation_steps": 4}])
def test_another_config_is_refused(config: Any) -> None:
    with pytest.raises(ValueError, match="config must be a GradientAccumulatorConfig"):
        GradientAccumulator(config)


@pytest.mark.parametrize("base", [2, -1, 0.0, True, None, "0"])
def test_step_base_is_zero_or_one(base: Any) -> None:
    with pytest.raises(ValueError, match="step_base"):
        accumulator(step_base=base)


def test_should_update_counts_what_was_accumulated_whatever_the_step() -> None:
    window = accumulator(3)
    seen = []
    for step in (3, 6, 7, 8):
        window.accumulate([torch.ones(1)])
        seen.append(window.should_update(step))
    assert seen == [False, False, True, True]


@given(st.integers(1, 9), st.integers(0, 50))
def test_should_update_of_an_empty_window_follows_the_counter(steps: int, step: int) -> None:
    assert accumulator(steps).should_update(step) == (step % steps == 0)
    assert accumulator(steps, step_base=0).should_update(step) == ((step + 1) % steps == 0)


@pytest.mark.parametrize("step", [-1, 1.0, None, "3", True])
def test_should_update_refuses_an_invalid_step(step: Any) -> None:
    with pytest.raises(ValueError, match="step must be >= 0"):
        accumulator().should_update(step)


def test_an_empty_window_has_no_gradients() -> None:
    window = accumulator()
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"^No gradients accumulated\. Call accumulate\(\) first\.$"):
            window.get_gradients()
        window.accumulate({"a": torch.ones(1)})
        window.reset()
        assert (window.current_step, window.accumulated_grads) == (0, None)


def test_a_tree_without_leaves_is_still_a_micro_batch() -> None:
    window = accumulator(1)
    window.accumulate({})
    assert window.should_update(1)
    assert window.get_gradients() == {}


def test_get_gradients_resets_and_gives_the_arrays_to_the_caller() -> None:
    window = accumulator(2)
    window.accumulate({"a": torch.tensor([1.0])})
    buffer = window.accumulated_grads["a"]  # type: ignore[index]
    window.accumulate({"a": torch.tensor([3.0])})
    assert window.accumulated_grads["a"] is buffer  # type: ignore[index]
    first = window.get_gradients()
    assert first["a"] is buffer
    assert (window.current_step, window.accumulated_grads) == (0, None)
    window.accumulate({"a": torch.tensor([9.0])})
    window.get_gradients()
    assert first["a"].tolist() == [2.0]


@pytest.mark.parametrize("make", [torch.ones, np.ones])
def test_the_callers_arrays_are_neither_kept_nor_changed(make: Any) -> None:
    window, own, other = accumulator(3), make(2), make(2)
    window.accumulate([own])
    own += 100  # a loop that reuses its buffers
    window.accumulate([other])
    window.accumulate([other])
    assert window.get_gradients()[0].tolist() == [1.0, 1.0]
    assert (own.tolist(), other.tolist()) == ([101.0, 101.0], [1.0, 1.0])


def test_the_same_array_twice_in_a_tree_is_two_leaves() -> None:
    shared, window = torch.ones(1), accumulator(2)
    for _ in range(2):
        window.accumulate([shared, shared])
    assert window.get_gradients() == [torch.ones(1), torch.ones(1)]


def test_views_that_share_memory_can_be_summed() -> None:
    window = accumulator(2)
    for _ in range(2):
        window.accumulate([torch.ones(1).expand(3), np.broadcast_to(np.ones(1), (3,))])
    assert [leaf.tolist() for leaf in window.get_gradients()] == [[1.0] * 3] * 2


def test_no_graph_is_kept() -> None:
    weight = torch.ones(2, requires_grad=True)
    window = accumulator(2)
    for _ in range(2):
        window.accumulate([weight * 3, torch.nn.Parameter(torch.ones(1))])
    for leaf in window.get_gradients():
        assert not leaf.requires_grad
        assert type(leaf) is torch.Tensor


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, np.float16])
def test_half_precision_is_summed_in_float32(dtype: Any) -> None:
    """In their own precision a sum of ones stops at 2048 in float16 and at 256 in bfloat16."""
    half = torch.ones(1, dtype=dtype) if isinstance(dtype, torch.dtype) else np.ones(1, dtype)
    window = accumulator(3000, normalize=False)
    for _ in range(3000):
        window.accumulate([half])
    window.accumulate([half / 2])
    total = window.get_gradients()[0]
    assert total.tolist() == [3000.5]
    assert str(total.dtype).endswith("float32")


def test_one_half_precision_micro_batch_comes_back_in_float32_too() -> None:
    window = accumulator(1)
    window.accumulate([torch.ones(1, dtype=torch.bfloat16)])
    assert window.get_gradients()[0].dtype == torch.float32


def test_half_and_single_precision_have_the_same_sum() -> None:
    window = accumulator(2)
    window.accumulate([torch.ones(1, dtype=torch.bfloat16)])
    window.accumulate([torch.ones(1)])
    assert window.get_gradients() == [torch.ones(1)]


@pytest.mark.parametrize(
    ("leaf", "says"),
    [
        (torch.ones(3), r"shape \(2,\).* now .*shape \(3,\)"),
        (torch.ones(2, 1), r"now .*shape \(2, 1\)"),
        (torch.ones(2, dtype=torch.float64), "now torch torch.float64"),
        (torch.ones(2, dtype=torch.complex64), "now torch torch.complex64"),
        (np.ones(2, np.float32), "now NumPy float32"),
        (torch.ones(2, device="meta"), "on meta"),
        (None, "now None"),
    ],
)
def test_a_leaf_that_changes_is_refused_by_name_and_the_window_stays(leaf: Any, says: str) -> None:
    window = accumulator(2)
    window.accumulate({"a": torch.ones(1), "b": [torch.ones(2)]})
    with pytest.raises(ValueError, match=rf"the leaf at \['b'\]\[0\] was .*{says}"):
        window.accumulate({"a": torch.ones(1), "b": [leaf]})
    window.accumulate({"a": torch.ones(1), "b": [torch.ones(2)]})
    assert repr(window.get_gradients()) == repr({"a": torch.ones(1), "b": [torch.ones(2)]})


def test_none_may_not_become_an_array() -> None:
    window = accumulator(2)
    window.accumulate([None])
    with pytest.raises(ValueError, match="was None and is now torch"):
        window.accumulate([torch.ones(1)])


def test_another_structure_or_leaf_is_refused_and_the_window_stays() -> None:
    window = accumulator(2)
    window.accumulate({"a": torch.ones(1)})
    with pytest.raises(ValueError, match="another structure"):
        window.accumulate({"b": torch.ones(1)})
    with pytest.raises(TypeError, match="of type float"):
        window.accumulate({"a": 1.0})
    assert window.current_step == 1
    window.get_gradients()
    window.accumulate({"b": torch.ones(1)})  # a new window may have another structure


@pytest.mark.parametrize("grads", [None, 1.0, "grads", {"a": 1}, [torch.ones(1), torch.tensor([1])]])
def test_what_is_no_tree_of_gradients_is_refused_and_opens_nothing(grads: Any) -> None:
    window = accumulator()
    with pytest.raises(TypeError):
        window.accumulate(grads)
    assert (window.current_step, window.accumulated_grads) == (0, None)


def test_an_overflow_is_summed_without_a_warning_and_found_afterwards() -> None:
    window = accumulator(2)
    window.accumulate([np.array([3e38, np.inf], np.float32), torch.tensor([3e38])])
    window.accumulate([np.array([3e38, -np.inf], np.float32), torch.tensor([3e38])])
    assert DynamicLossScaler().check_overflow(window.get_gradients())


def test_a_state_holds_copies_and_continues_an_open_window() -> None:
    parts = [{"a": torch.tensor([float(i)]), "b": (np.array([i / 2]), None)} for i in range(4)]
    window, later = accumulator(4), accumulator(4)
    for part in parts[:2]:
        window.accumulate(part)
    state = window.state_dict()
    later.load_state_dict(state)
    state["accumulated_grads"]["a"] += 100
    for part in parts[2:]:
        window.accumulate(part)
        later.accumulate(part)
    assert later.should_update(4)
    assert (
        repr(later.get_gradients())
        == repr(window.get_gradients())
        == "{'a': tensor([1.5000]), 'b': (array([0.75]), None)}"
    )


def test_a_state_between_windows_clears_the_open_one() -> None:
    window, empty = accumulator(), accumulator()
    window.accumulate([torch.ones(1)])
    window.load_state_dict(empty.state_dict())
    assert (window.current_step, window.accumulated_grads) == (0, None)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"accumulation_steps": 8}, "accumulation_steps is 4 here and 8 in the state"),
        ({"normalize_gradients": False}, "normalize_gradients is True here"),
        ({"step_base": 0}, "step_base is 1 here"),
        ({"current_step": 0}, "if and only if current_step is 0"),
        ({"current_step": -1}, "current_step must be >= 0"),
        ({"current_step": 1.0}, "current_step"),
        ({"accumulated_grads": None}, "if and only if current_step is 0"),
        ({"more": 1}, "keys"),
    ],
)
def test_a_bad_state_is_refused_and_changes_nothing(change: dict[str, Any], says: str) -> None:
    window = accumulator()
    window.accumulate([torch.ones(1)])
    with pytest.raises(ValueError, match=says):
        window.load_state_dict({**window.state_dict(), **change})
    with pytest.raises(TypeError, match="of type str"):
        window.load_state_dict({**window.state_dict(), "accumulated_grads": ["x"]})
    nothing: Any
    for nothing in (None, {}, []):
        with pytest.raises(ValueError, match="keys"):
            window.load_state_dict(nothing)
    assert (window.current_step, window.accumulated_grads) == (1, [torch.ones(1)])


def test_the_scaler_is_exported_here_too() -> None:
    assert functional.DynamicLossScaler is loss_scaling.DynamicLossScaler
    assert functional.DynamicLossScalerConfig is loss_scaling.DynamicLossScalerConfig


@pytest.mark.parametrize("base", [0, 1])
def test_the_documented_loop_equals_big_batches(base: int) -> None:
    """Ten micro-batches, N = 4: two full windows and the tail, each one step of plain gradient descent."""
    weights = two_layers(torch.float64)
    reference, data = copy.deepcopy(weights), torch.randn(20, 5, dtype=torch.float64)
    window = accumulator(4, step_base=base)

    def descend(into: Grads, grads: Grads) -> None:
        for name, grad in grads.items():
            into[name] -= 0.1 * grad

    for step, micro_batch in enumerate(data.split(2), start=base):
        window.accumulate(gradients(weights, micro_batch))
        if window.should_update(step):
            descend(weights, window.get_gradients())
            window.reset()
    if window.current_step:
        descend(weights, window.get_gradients())
    for big_batch in data.split(8):
        descend(reference, gradients(reference, big_batch))
    assert relative_difference(weights, reference) <= 1e-12


def test_accumulation_and_scaling_together_skip_exactly_the_overflow() -> None:
    weights, scaler = two_layers(torch.float32), DynamicLossScaler(DynamicLossScalerConfig(growth_interval=2))
    data, window, skipped = torch.randn(12, 5), accumulator(2), []
    data[4] = float("inf")  # in the second window
    for step, micro_batch in enumerate(data.split(2), start=1):
        scaled = torch.func.grad(lambda now, x: scaler.scale_loss(mean_loss(now, x)))(weights, micro_batch)
        window.accumulate(scaler.unscale_gradients(scaled))
        if window.should_update(step):
            mean = window.get_gradients()
            overflow = scaler.check_overflow(mean)
            scaler.update_scale(overflow)
            skipped.append(overflow)
            if not overflow:
                big = data[2 * step - 4 : 2 * step]
                assert relative_difference(mean, gradients(weights, big)) <= 1e-6
    assert skipped == [False, True, False]
    assert (scaler.scale, scaler.steps_since_growth) == (2.0**14, 1)
