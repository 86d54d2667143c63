"""Flattening gradient trees, and copying and checking leaves."""

import subprocess
import sys
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from onyx.accumulation import tree as tree_functions
from onyx.accumulation.tree import (
    Tree,
    copy_leaves,
    flatten,
    flatten_like,
    is_gradient,
    is_traced,
    kind_of,
    leaf_names,
)

Pair = namedtuple("Pair", "weight bias")

leaves = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]).map(
    lambda dtype: torch.ones(2, dtype=dtype)
) | st.sampled_from([np.float16, np.float32, np.float64]).map(lambda dtype: np.ones((1, 2), dtype))
trees = st.recursive(
    leaves | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text("abc", max_size=2), inner, max_size=3)
        | st.tuples(inner, inner).map(lambda both: Pair(*both))
    ),
    max_leaves=8,
)


class HostReads(TorchDispatchMode):
    """Counts how often the host reads a value from the device."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def all_finite(leaves: list[Any]) -> bool:
    return tree_functions.all_finite(flatten(leaves))


@given(trees)
def test_any_nesting_comes_back_as_it_was(tree: Tree) -> None:
    flat = flatten(tree)
    assert repr(flat.structure.unflatten(flat.leaves)) == repr(tree)
    assert [id(leaf) for leaf in flatten_like(flat.structure, tree).leaves] == [id(leaf) for leaf in flat.leaves]
    assert len(leaf_names(tree)) == len(flat.leaves)


@given(trees)
def test_copies_are_new_and_at_least_float32(tree: Tree) -> None:
    flat = flatten(tree)
    for old, new in zip(flat.leaves, copy_leaves(flat), strict=True):
        assert (old is None) == (new is None)
        if old is not None:
            assert new is not old
            assert new.dtype.itemsize >= 4
            assert type(new) is type(old)
            assert kind_of(old) == kind_of(new)


def test_names_are_index_expressions() -> None:
    assert leaf_names({"layer": [torch.ones(1), (np.ones(1),)]}) == ["['layer'][0]", "['layer'][1][0]"]
    assert leaf_names(torch.ones(1)) == ["the root"]


def test_the_order_of_keys_is_not_structure() -> None:
    one, two = torch.tensor([1.0]), torch.tensor([2.0])
    structure = flatten({"a": one, "b": two}).structure
    assert flatten_like(structure, {"b": two, "a": one}).leaves == [one, two]
    assert flatten_like(structure, OrderedDict(b=two, a=one)).leaves == [one, two]


@pytest.mark.parametrize(
    ("first", "then", "says"),
    [
        ({"a": 1, "b": 1}, {"a": 1}, r"without \['b'\]"),
        ({"a": 1}, {"a": 1, "b": 1}, r"with \['b'\]"),
        ({"a": 1}, {"b": 1}, r"without \['a'\] and with \['b'\]"),
        ([1, 1], [1], r"without \[1\]"),
        ([1], (1,), "containers"),
        ({"a": 1}, {"a": [1, 1]}, r"with \['a'\]\[0\], \['a'\]\[1\]"),
        ({"a": [1]}, {"a": 1}, r"without \['a'\]\[0\]"),
        (1, [1], "without the root"),
        ({}, [], "containers"),
        (dict.fromkeys("abcdefgh", 1), {}, "and 3 more"),
    ],
)
def test_another_structure_is_a_value_error(first: Tree, then: Tree, says: str) -> None:
    def planted(tree: Tree) -> Tree:
        if isinstance(tree, dict):
            return {key: planted(value) for key, value in tree.items()}
        return type(tree)(map(planted, tree)) if isinstance(tree, list | tuple) else torch.ones(1)

    structure = flatten(planted(first)).structure
    with pytest.raises(ValueError, match=says):
        flatten_like(structure, planted(then))


@pytest.mark.parametrize(
    ("leaf", "says"),
    [
        (1.0, "of type float"),
        (3, "of type int"),
        ("x", "of type str"),
        (np.float64(1.0), "of type float64"),
        (object(), "of type object"),
        ({1}, "of type set"),
        (torch.ones(2, dtype=torch.int64), "torch.int64"),
        (torch.ones(2, dtype=torch.bool), "torch.bool"),
        (torch.ones(2, dtype=torch.float8_e4m3fn), "float8"),
        (torch.ones(2).to_sparse(), "sparse"),
        (np.ones(2, np.int32), "int32"),
        (np.array(["x"]), "NumPy array"),
        (np.array([None]), "object"),
    ],
)
def test_a_leaf_that_is_no_gradient_is_a_type_error_naming_its_place(leaf: Any, says: str) -> None:
    assert not is_gradient(leaf)
    tree = {"a": torch.ones(1), "b": [None, leaf]}
    with pytest.raises(TypeError, match=rf"\['b'\]\[1\] .*{says}"):
        flatten(tree)
    structure = flatten({"a": torch.ones(1), "b": [None, torch.ones(1)]}).structure
    with pytest.raises(TypeError, match=rf"\['b'\]\[1\] .*{says}"):
        flatten_like(structure, tree)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, np.float16, np.float64]
)
def test_a_nan_or_inf_is_found_at_any_index(dtype: Any, bad: float) -> None:
    for place in range(70):  # longer than a vector register, so that the remainder is covered too
        leaf: Any = torch.ones(70, dtype=dtype) if isinstance(dtype, torch.dtype) else np.ones(70, dtype)
        assert all_finite([leaf])
        leaf[place] = bad
        assert not all_finite([torch.ones(1), None, leaf, np.ones(1)])


def test_large_but_finite_is_finite() -> None:
    """A 2-norm would overflow here, and so would a cast to float32."""
    assert all_finite([torch.full((9,), 3e38), torch.full((9,), 1e308, dtype=torch.float64)])
    assert all_finite([torch.full((9,), 65504.0, dtype=torch.float16), np.full(9, 65504.0, np.float16)])
    assert all_finite([torch.full((2,), 3e38 - 3e38j, dtype=torch.complex64).conj()])


def test_empty_arrays_and_no_arrays_are_finite() -> None:
    assert all_finite([])
    assert all_finite([None, torch.ones(0), np.ones((0, 3))])


def test_the_host_waits_once_for_all_leaves() -> None:
    many = [torch.ones(2, dtype=dtype) for dtype in (torch.float16, torch.float32, torch.float64) for _ in range(9)]
    with HostReads() as reads:  # type: ignore[no-untyped-call]
        assert all_finite(many)
    assert reads.count == 1


def test_descriptions() -> None:
    assert str(kind_of(None)) == "None"
    assert str(kind_of(torch.ones(2, 3, dtype=torch.bfloat16))) == "torch torch.float32 of shape (2, 3) on cpu"
    assert str(kind_of(np.ones(4))) == "NumPy float64 of shape (4,)"
    assert not is_traced(torch.ones(1))


def test_onyx_does_not_import_jax() -> None:
    code = "import sys, onyx.accumulation.functional; sys.exit('jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
