"""The functional accumulator and the scaler with JAX and flax, where they are installed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from onyx.accumulation.functional import DynamicLossScaler, GradientAccumulator, GradientAccumulatorConfig

jax = pytest.importorskip("jax")
jnp = jax.numpy


def accumulator(steps: int = 4, normalize: bool = True) -> GradientAccumulator:
    return GradientAccumulator(GradientAccumulatorConfig(steps, normalize))


def weights() -> dict[str, Any]:
    first, second = jax.random.split(jax.random.key(0))
    return {"first": jax.random.normal(first, (5, 7)), "second": [jax.random.normal(second, (7, 1)), None]}


def mean_loss(tree: dict[str, Any], x: Any) -> Any:
    return ((jnp.tanh(x @ tree["first"]) @ tree["second"][0] - 2) ** 2).mean()


gradients = jax.jit(jax.grad(mean_loss))


def relative_difference(found: Any, wanted: Any) -> float:
    a, b = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]) for tree in (found, wanted))
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@given(st.integers(1, 8), st.sampled_from([1, 3, 8]), st.integers(0, 2**16))
def test_compiled_gradients_of_micro_batches_have_the_mean_of_the_big_batch(steps: int, taken: int, seed: int) -> None:
    tree, x = weights(), jax.random.normal(jax.random.key(seed), (taken * 3, 5))
    window = accumulator(steps)
    for micro_batch in jnp.split(x, taken):
        window.accumulate(gradients(tree, micro_batch))
    assert window.should_update(taken) == (taken >= steps)
    mean = window.get_gradients()
    assert mean["second"][1] is None
    assert relative_difference(mean, gradients(tree, x)) <= 1e-6


def test_float64() -> None:
    with jax.enable_x64(True):
        tree = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), weights())
        x = jax.random.normal(jax.random.key(1), (12, 5), jnp.float64)
        window = accumulator()
        for micro_batch in jnp.split(x, 4):
            window.accumulate(gradients(tree, micro_batch))
        mean = window.get_gradients()
        assert mean["first"].dtype == jnp.float64
        assert relative_difference(mean, gradients(tree, x)) <= 1e-12


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_summed_in_float32(dtype: str) -> None:
    half, window = jnp.ones(1, dtype), accumulator(600, normalize=False)
    foreign = np.asarray(half)  # a NumPy array of JAX's bfloat16
    for _ in range(600):
        window.accumulate([half, foreign])
    window.accumulate([half / 4, foreign / 4])
    for total in window.get_gradients():
        assert (total.tolist(), str(total.dtype)) == ([600.25], "float32")


def test_a_donated_array_was_copied_before() -> None:
    """The caller may donate its gradients to a compiled function, which deletes them."""
    window, grads = accumulator(2), jnp.ones(3)
    window.accumulate([grads])
    grads.delete()
    window.accumulate([jnp.ones(3)])
    assert window.get_gradients()[0].tolist() == [1.0, 1.0, 1.0]


def test_leaves_of_all_libraries_may_mix() -> None:
    tree = {"jax": jnp.ones(1), "none": None, "numpy": np.ones(1), "torch": torch.ones(1)}
    window = accumulator(2)
    for _ in range(2):
        window.accumulate(tree)
    assert repr(window.get_gradients()) == repr(tree)
    assert not DynamicLossScaler().check_overflow(tree)
    assert DynamicLossScaler().check_overflow({**tree, "torch": torch.tensor([float("nan")])})


@pytest.mark.parametrize(
    ("then", "says"),
    [
        ({"a": jnp.ones(3), "b": [None]}, r"the leaf at \['a'\] was JAX float32 of shape \(2,\)"),
        ({"a": np.ones(2, np.float32), "b": [None]}, r"\['a'\] .* now NumPy"),
        ({"a": jnp.ones(2), "b": [jnp.ones(1)]}, "another structure"),
        ({"a": None, "b": [None]}, r"the leaf at \['a'\] .* now None"),
        ({"a": jnp.ones(2)}, "another structure"),
        ([jnp.ones(2), [None]], "another structure"),
    ],
)
def test_what_does_not_match_the_first_is_refused_and_the_window_stays(then: Any, says: str) -> None:
    window = accumulator(2)
    first = {"a": jnp.ones(2), "b": [None]}
    window.accumulate(first)
    with pytest.raises(ValueError, match=says):
        window.accumulate(then)
    window.accumulate(first)
    assert repr(window.get_gradients()) == repr(first)


@pytest.mark.parametrize("leaf", [1.0, "x", jnp.ones(1, "int32"), jax.random.key(0), np.ones(1, jax.dtypes.float0)])
def test_other_leaves_are_refused_by_name(leaf: Any) -> None:
    with pytest.raises(TypeError, match=r"the leaf at \['b'\]"):
        accumulator().accumulate({"a": jnp.ones(1), "b": leaf})


def test_accumulating_inside_a_compiled_function_is_refused() -> None:
    window = accumulator()
    for count in (0, 1):
        with pytest.raises(TypeError, match="being traced: return them"):
            jax.jit(lambda grads: window.accumulate([grads]))(jnp.ones(1))
        assert window.current_step == count
        window.accumulate([jnp.ones(1)])


def test_a_state_continues_an_open_window() -> None:
    window, later = accumulator(2), accumulator(2)
    window.accumulate({"a": jnp.ones(2)})
    later.load_state_dict(window.state_dict())
    later.accumulate({"a": 3 * jnp.ones(2)})
    assert later.get_gradients()["a"].tolist() == [2.0, 2.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_check_overflow(bad: float) -> None:
    scaler = DynamicLossScaler()
    assert scaler.check_overflow(weights()) is False
    assert scaler.check_overflow({**weights(), "third": jnp.array([0.0, bad], "bfloat16")}) is True
    assert scaler.check_overflow({"a": jnp.ones(0), "b": ()}) is False


def test_check_overflow_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[int] = []
    real: Callable[[Any], Any] = jax.device_get

    def counted(values: list[Any]) -> Any:
        fetched.append(len(values))
        return real(values)

    monkeypatch.setattr(jax, "device_get", counted)
    assert not DynamicLossScaler().check_overflow([jnp.ones(2)] * 9)
    assert fetched == [9]


def test_defect_the_documents_loop_and_the_right_one() -> None:
    scaler, tree, x = DynamicLossScaler(), weights(), jnp.ones((4, 5))
    true = gradients(tree, x)
    wrong = scaler.unscale_gradients(gradients(tree, x))  # the differentiated loss was not scaled
    right = scaler.unscale_gradients(jax.grad(lambda now: scaler.scale_loss(mean_loss(now, x)))(tree))
    assert relative_difference(jax.tree.map(lambda leaf: leaf * 32768, wrong), true) <= 1e-6
    assert relative_difference(right, true) <= 1e-6


def test_a_compiled_function_takes_the_scale_as_an_argument() -> None:
    """Inside `jit` the scaler's own number is frozen when the function is first traced."""
    scaler, tree, x = DynamicLossScaler(), weights(), jnp.ones((4, 5))
    true = gradients(tree, x)
    frozen = jax.jit(jax.grad(lambda now: scaler.scale_loss(mean_loss(now, x))))
    with_argument = jax.jit(jax.grad(lambda now, scale: mean_loss(now, x) * scale))
    frozen(tree)
    scaler.update_scale(True)
    assert relative_difference(scaler.unscale_gradients(with_argument(tree, scaler.scale)), true) <= 1e-6
    assert relative_difference(scaler.unscale_gradients(frozen(tree)), true) == pytest.approx(1.0)  # twice too large


def test_unscaling_works_inside_a_compiled_function_and_widens_half_precision() -> None:
    unscaled = jax.jit(DynamicLossScaler().unscale_gradients)({"a": jnp.full(1, 1e-3, "float16"), "b": None})
    assert unscaled["a"].dtype == jnp.float32
    assert float(unscaled["a"][0]) == pytest.approx(1e-3 / 32768, rel=1e-3)


def test_flax_states_are_walked_and_come_back_as_states() -> None:
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.Sequential(nnx.Linear(5, 7, rngs=nnx.Rngs(0)), nnx.tanh, nnx.Linear(7, 1, rngs=nnx.Rngs(1)))
    grad = nnx.jit(nnx.grad(lambda model, x: ((model(x) - 2) ** 2).mean()))
    x = jax.random.normal(jax.random.key(2), (12, 5))
    window = accumulator()
    for micro_batch in jnp.split(x, 4):
        window.accumulate(grad(model, micro_batch))
    mean, wanted = window.get_gradients(), grad(model, x)
    assert type(mean) is nnx.State
    assert jax.tree.structure(mean) == jax.tree.structure(wanted)
    assert relative_difference(mean, wanted) <= 1e-6
    window.accumulate(mean)
    with pytest.raises(ValueError, match="another structure"):
        window.accumulate({"kernel": jnp.ones(1)})
    assert not DynamicLossScaler().check_overflow(mean)
    assert type(DynamicLossScaler().unscale_gradients(mean)) is nnx.State


def test_an_optax_update_takes_the_mean_as_it_is() -> None:
    optax = pytest.importorskip("optax")
    tree, optimizer, window = weights(), optax.adam(1e-2), accumulator(2)
    state = optimizer.init(tree)
    for micro_batch in jnp.split(jax.random.normal(jax.random.key(3), (8, 5)), 2):
        window.accumulate(gradients(tree, micro_batch))
    updates, _ = optimizer.update(window.get_gradients(), state, tree)
    assert relative_difference(optax.apply_updates(tree, updates), tree) > 0
