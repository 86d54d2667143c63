"""Gradient trees: how they are walked, and what is done to a leaf, whichever library it comes from.

JAX is looked up among the loaded modules, never imported: whoever holds a JAX array has loaded it already.
"""

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from torch.utils import _pytree  # torch's own walk; it has no public name yet

# A tree is what the walks below can walk, a leaf an array of one of three libraries or None: no type says so.
Tree: TypeAlias = Any
Leaf: TypeAlias = Any
NumpyArray: TypeAlias = np.ndarray[Any, Any]

HALF_ITEMSIZE = 2  # bytes; a leaf of at most this is summed in float32
NAMES_IN_MESSAGE = 5  # a model has thousands of leaves; a message that lists them all is not read


class Structure(Protocol):
    """A tree without its leaves. Torch's TreeSpec and JAX's PyTreeDef are both one."""

    @property
    def num_leaves(self) -> int: ...
    def flatten_up_to(self, tree: Tree) -> list[Leaf]: ...
    def unflatten(self, leaves: Any) -> Tree: ...


class Library(Protocol):
    """What is needed of a library of arrays."""

    @property
    def name(self) -> str: ...

    def owns(self, leaf: Leaf) -> bool:
        """Whether the leaf is one of its arrays."""

    def sum_dtype(self, leaf: Leaf) -> Any:
        """The dtype such a leaf is summed in, float32 for half precision; None if it cannot be a gradient."""

    def copy(self, leaf: Leaf) -> Leaf:
        """A new array in the dtype of the sum, without history."""

    def add(self, total: Leaf, leaf: Leaf) -> Leaf:
        """`total + leaf`, written into `total` where the library can."""

    def divide(self, total: Leaf, by: float) -> Leaf:
        """`total / by`, written into `total` where the library can."""

    def all_finite(self, leaves: Sequence[Leaf]) -> bool:
        """No NaN and no Inf in any of them. The host waits for the device once."""


class TorchLibrary:
    """Torch tensors."""

    name = "torch"
    sum_dtypes = {  # noqa: RUF012 - nobody changes it
        torch.float16: torch.float32,
        torch.bfloat16: torch.float32,
        torch.float32: torch.float32,
        torch.float64: torch.float64,
        torch.complex64: torch.complex64,
        torch.complex128: torch.complex128,
    }

    def owns(self, leaf: Leaf) -> bool:
        return isinstance(leaf, torch.Tensor)

    def sum_dtype(self, leaf: torch.Tensor) -> torch.dtype | None:
        return self.sum_dtypes.get(leaf.dtype) if leaf.layout == torch.strided else None

    def copy(self, leaf: torch.Tensor) -> torch.Tensor:
        return leaf.detach().to(self.sum_dtype(leaf), copy=True)

    def add(self, total: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
        return total.add_(leaf.detach() if leaf.requires_grad else leaf)

    def divide(self, total: torch.Tensor, by: float) -> torch.Tensor:
        return total.div_(by)

    def all_finite(self, leaves: Sequence[torch.Tensor]) -> bool:
        extremes: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
        for leaf in leaves:
            real = _as_real(leaf.detach())
            if real.numel():
                # NaN comes through min and max. On a CPU ten times as fast as isfinite, and without its mask.
                extremes.setdefault((real.device, real.dtype), []).extend(torch.aminmax(real))
        if not extremes:
            return True
        home = next(iter(extremes))[0]
        verdicts = [torch.stack(values).isfinite().all().to(home) for values in extremes.values()]
        return bool(torch.stack(verdicts).all())


class NumpyLibrary:
    """NumPy arrays."""

    name = "NumPy"

    def owns(self, leaf: Leaf) -> bool:
        return isinstance(leaf, np.ndarray)

    def sum_dtype(self, leaf: NumpyArray) -> np.dtype[Any] | None:
        # NumPy has no bfloat16 of its own, and the one that comes with JAX counts as "void".
        if leaf.dtype.kind not in "fc" and leaf.dtype.name != "bfloat16":
            return None
        return np.dtype(np.float32) if leaf.dtype.itemsize <= HALF_ITEMSIZE else leaf.dtype

    def copy(self, leaf: NumpyArray) -> NumpyArray:
        return np.array(leaf, dtype=self.sum_dtype(leaf), copy=True)

    def add(self, total: NumpyArray, leaf: NumpyArray) -> NumpyArray:
        with np.errstate(over="ignore", invalid="ignore"):  # check_overflow reports it, as for the other libraries
            np.add(total, leaf, out=total)
        return total

    def divide(self, total: NumpyArray, by: float) -> NumpyArray:
        with np.errstate(invalid="ignore", under="ignore"):
            np.divide(total, by, out=total)
        return total

    def all_finite(self, leaves: Sequence[NumpyArray]) -> bool:
        return all(bool(np.isfinite(leaf).all()) for leaf in leaves)


class JaxLibrary:
    """JAX arrays, those that JAX is only tracing included."""

    name = "JAX"

    def owns(self, leaf: Leaf) -> bool:
        jax = _jax()
        return jax is not None and isinstance(leaf, jax.Array)

    def sum_dtype(self, leaf: Leaf) -> Any:
        numpy = _jax().numpy
        if not numpy.issubdtype(leaf.dtype, numpy.inexact):
            return None
        return np.dtype(np.float32) if leaf.dtype.itemsize <= HALF_ITEMSIZE else leaf.dtype

    def copy(self, leaf: Leaf) -> Leaf:
        # JAX arrays never change, but a caller may donate this one to a compiled function: it is deleted.
        return _jax().numpy.array(leaf, dtype=self.sum_dtype(leaf), copy=True)

    def add(self, total: Leaf, leaf: Leaf) -> Leaf:
        return total + leaf.astype(total.dtype)

    def divide(self, total: Leaf, by: float) -> Leaf:
        return total / by

    def all_finite(self, leaves: Sequence[Leaf]) -> bool:
        jax = _jax()
        # All of them are on their way before the first is awaited, and they may live on different devices.
        return all(map(bool, jax.device_get([jax.numpy.isfinite(leaf).all() for leaf in leaves])))


class Nothing:
    """A parameter without a gradient: None, which stays None."""

    name = "None"

    def owns(self, leaf: Leaf) -> bool:
        return leaf is None

    def sum_dtype(self, leaf: None) -> str:
        return self.name

    def copy(self, leaf: None) -> None:
        return None

    def add(self, total: None, leaf: None) -> None:
        return None

    def divide(self, total: None, by: float) -> None:
        return None

    def all_finite(self, leaves: Sequence[None]) -> bool:
        return True


LIBRARIES: tuple[Library, ...] = (TorchLibrary(), NumpyLibrary(), JaxLibrary(), Nothing())
# Asked for every leaf of every micro-batch: the usual types need no search.
LIBRARY_OF_TYPE: dict[type, Library] = {torch.Tensor: LIBRARIES[0], np.ndarray: LIBRARIES[1]}


class Kind(NamedTuple):
    """What two leaves must share to be summed."""

    library: Library
    sum_dtype: Any
    shape: tuple[int, ...]
    device: torch.device | None

    def __str__(self) -> str:
        if self.library.name == Nothing.name:
            return Nothing.name
        place = f" on {self.device}" if self.device else ""
        return f"{self.library.name} {self.sum_dtype} of shape {tuple(self.shape)}{place}"


class Flat(NamedTuple):
    """A tree taken apart: its leaves in order, the kind of each, and how to put them together again."""

    leaves: list[Leaf]
    kinds: list[Kind]
    structure: Structure


def kind_of(leaf: Leaf) -> Kind:
    """The kind of a leaf that can be a gradient. Any other leaf is a TypeError that says what is allowed."""
    library = LIBRARY_OF_TYPE.get(type(leaf)) or next((one for one in LIBRARIES if one.owns(leaf)), None)
    if library is None:
        raise TypeError(f"is of type {type(leaf).__name__}: give a torch tensor, a NumPy array, a JAX array or None")
    dtype = library.sum_dtype(leaf)
    if dtype is None:
        layout = f" ({leaf.layout})" if isinstance(leaf, torch.Tensor) and leaf.layout != torch.strided else ""
        raise TypeError(f"is a {library.name} array of {leaf.dtype}{layout}: gradients are dense and floating point")
    device = leaf.device if isinstance(leaf, torch.Tensor) else None
    return Kind(library, dtype, () if leaf is None else leaf.shape, device)


def is_gradient(leaf: Leaf) -> bool:
    """Whether a leaf can be a gradient (None can)."""
    try:
        kind_of(leaf)
    except TypeError:
        return False
    return True


def flatten(tree: Tree) -> Flat:
    """Takes a tree apart. A leaf that cannot be a gradient is a TypeError that names its place."""
    leaves, structure = _walk(tree)
    kinds: list[Kind] = []
    try:
        for leaf in leaves:
            kinds.append(kind_of(leaf))  # noqa: PERF401 - their number is the place of the leaf that fails
    except TypeError as error:
        raise TypeError(f"the leaf at {leaf_names(tree)[len(kinds)]} {error}") from None
    return Flat(leaves, kinds, structure)


def flatten_like(structure: Structure, tree: Tree) -> Flat:
    """Takes a tree apart in the order of `structure`. A tree of another structure is a ValueError.

    Dicts with the same keys in another order have the same structure.
    """
    try:
        leaves = structure.flatten_up_to(tree)
        # Where the structure has a leaf, flatten_up_to takes what it finds there: a whole branch is no kind of leaf.
        return Flat(leaves, list(map(kind_of, leaves)), structure)
    except (TypeError, ValueError):
        flatten(tree)  # a leaf that cannot be a gradient is the better complaint
        difference = _difference(structure, tree)
        raise ValueError(f"the tree has another structure than the first of this window: {difference}") from None


def copy_leaves(flat: Flat) -> list[Leaf]:
    """Arrays of our own, half precision widened to float32."""
    return [kind.library.copy(leaf) for leaf, kind in zip(flat.leaves, flat.kinds, strict=True)]


def all_finite(flat: Flat) -> bool:
    """No NaN and no Inf in any leaf; each library is asked once."""
    by_library: dict[Library, list[Leaf]] = {}
    for leaf, kind in zip(flat.leaves, flat.kinds, strict=True):
        by_library.setdefault(kind.library, []).append(leaf)
    return all(library.all_finite(leaves) for library, leaves in by_library.items())


def leaf_names(tree: Tree) -> list[str]:
    """Where each leaf sits, written as one would index it."""
    structure = _walk(tree)[1]
    walk: Any = _pytree if isinstance(structure, _pytree.TreeSpec) else _jax().tree_util
    return [walk.keystr(path) or "the root" for path, _ in walk.tree_flatten_with_path(tree)[0]]


def is_traced(leaf: Leaf) -> bool:
    """Whether JAX is only tracing this leaf, so that there is no value to keep."""
    jax = _jax()
    return jax is not None and isinstance(leaf, jax.core.Tracer)


def _jax() -> Any:
    return sys.modules.get("jax")


def _walk(tree: Tree) -> tuple[list[Leaf], Structure]:
    leaves, structure = _pytree.tree_flatten(tree)
    # Torch takes what it does not know for a leaf: a JAX array, but an nnx.State too, which JAX can open.
    if _jax() is not None and not all(map(_torch_knows, leaves)):
        leaves, structure = _jax().tree_util.tree_flatten(tree)
    return leaves, structure


def _torch_knows(leaf: Leaf) -> bool:
    return leaf is None or isinstance(leaf, (torch.Tensor, np.ndarray))


def _difference(structure: Structure, tree: Tree) -> str:
    """Which leaves two structures do not share, for a message."""
    first = leaf_names(structure.unflatten([np.zeros(0)] * structure.num_leaves))
    now = leaf_names(tree)
    missing = [name for name in first if name not in set(now)]
    added = [name for name in now if name not in set(first)]
    parts = [f"without {_some(missing)}"] * bool(missing) + [f"with {_some(added)}"] * bool(added)
    return " and ".join(parts) or "its containers are of other types"


def _some(names: Sequence[str]) -> str:
    rest = len(names) - NAMES_IN_MESSAGE
    return ", ".join(names[:NAMES_IN_MESSAGE]) + (f" and {rest} more" if rest > 0 else "")


def _as_real(leaf: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(leaf.resolve_conj()) if leaf.is_complex() else leaf
