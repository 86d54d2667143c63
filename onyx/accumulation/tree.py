"""Gradient trees: how to walk one, and how to copy, add and divide a leaf of torch, NumPy or JAX.

JAX is looked up among the loaded modules and never imported: a caller that has a JAX array has imported JAX already.
"""

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from torch.utils import _pytree  # no public name yet

# A tree is what `flatten` accepts, a leaf an array of one of three libraries or None. No type expresses this.
Tree: TypeAlias = Any
Leaf: TypeAlias = Any
NumpyArray: TypeAlias = np.ndarray[Any, Any]

HALF_ITEMSIZE = 2  # bytes; a leaf of at most this is summed in float32
NAMES_IN_MESSAGE = 5  # a model has thousands of leaves: a message lists the first few


class Structure(Protocol):
    """A tree without its leaves: torch's TreeSpec or JAX's PyTreeDef."""

    @property
    def num_leaves(self) -> int: ...
    def flatten_up_to(self, tree: Tree) -> list[Leaf]: ...
    def unflatten(self, leaves: Any) -> Tree: ...


class Library(Protocol):
    """The operations on leaves that each array library provides."""

    @property
    def name(self) -> str: ...

    def owns(self, leaf: Leaf) -> bool:
        """Whether the leaf is an array of this library."""

    def sum_dtype(self, leaf: Leaf) -> Any:
        """The dtype that this leaf is summed in: float32 for half precision, None if it cannot be a gradient."""

    def copy(self, leaf: Leaf) -> Leaf:
        """A new array in the dtype of the sum, without autograd history."""

    def add(self, total: Leaf, leaf: Leaf) -> Leaf:
        """`total + leaf`, written into `total` where the library can."""

    def divide(self, total: Leaf, by: float) -> Leaf:
        """`total / by`, written into `total` where the library can."""

    def all_finite(self, leaves: Sequence[Leaf]) -> bool:
        """Whether none of them holds a NaN or an Inf. The host waits for the device once."""


class TorchLibrary:
    """Torch tensors."""

    name = "torch"
    sum_dtypes = {  # noqa: RUF012 - never changed
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
                # NaN passes through min and max. On a CPU this is ten times as fast as isfinite, and needs no mask.
                extremes.setdefault((real.device, real.dtype), []).extend(torch.aminmax(real))
        if not extremes:
            return True
        device = next(iter(extremes))[0]
        finite = [torch.stack(values).isfinite().all().to(device) for values in extremes.values()]
        return bool(torch.stack(finite).all())


class NumpyLibrary:
    """NumPy arrays."""

    name = "NumPy"

    def owns(self, leaf: Leaf) -> bool:
        return isinstance(leaf, np.ndarray)

    def sum_dtype(self, leaf: NumpyArray) -> np.dtype[Any] | None:
        # NumPy has no bfloat16. The one that JAX installs has kind "V" (void).
        if leaf.dtype.kind not in "fc" and leaf.dtype.name != "bfloat16":
            return None
        return np.dtype(np.float32) if leaf.dtype.itemsize <= HALF_ITEMSIZE else leaf.dtype

    def copy(self, leaf: NumpyArray) -> NumpyArray:
        return np.array(leaf, dtype=self.sum_dtype(leaf), copy=True)

    def add(self, total: NumpyArray, leaf: NumpyArray) -> NumpyArray:
        with np.errstate(over="ignore", invalid="ignore"):  # check_overflow reports it for all libraries
            np.add(total, leaf, out=total)
        return total

    def divide(self, total: NumpyArray, by: float) -> NumpyArray:
        with np.errstate(invalid="ignore", under="ignore"):
            np.divide(total, by, out=total)
        return total

    def all_finite(self, leaves: Sequence[NumpyArray]) -> bool:
        return all(bool(np.isfinite(leaf).all()) for leaf in leaves)


class JaxLibrary:
    """JAX arrays, traced ones included."""

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
        # JAX arrays are immutable, but a compiled function may delete this one if the caller donates it.
        return _jax().numpy.array(leaf, dtype=self.sum_dtype(leaf), copy=True)

    def add(self, total: Leaf, leaf: Leaf) -> Leaf:
        return total + leaf.astype(total.dtype)

    def divide(self, total: Leaf, by: float) -> Leaf:
        return total / by

    def all_finite(self, leaves: Sequence[Leaf]) -> bool:
        jax = _jax()
        # All checks are dispatched before the first is awaited; the leaves may be on different devices.
        return all(map(bool, jax.device_get([jax.numpy.isfinite(leaf).all() for leaf in leaves])))


class NoneLibrary:
    """None: a parameter without a gradient. It stays None."""

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


LIBRARIES: tuple[Library, ...] = (TorchLibrary(), NumpyLibrary(), JaxLibrary(), NoneLibrary())
# A shortcut for the usual types, because every leaf of every micro-batch is looked up.
LIBRARY_OF_TYPE: dict[type, Library] = {torch.Tensor: LIBRARIES[0], np.ndarray: LIBRARIES[1]}


class Kind(NamedTuple):
    """What two leaves must have in common to be added."""

    library: Library
    sum_dtype: Any
    shape: tuple[int, ...]
    device: torch.device | None

    def __str__(self) -> str:
        if self.library.name == NoneLibrary.name:
            return NoneLibrary.name
        on_device = f" on {self.device}" if self.device else ""
        return f"{self.library.name} {self.sum_dtype} of shape {tuple(self.shape)}{on_device}"


class Flat(NamedTuple):
    """A flattened tree: its leaves in order, the kind of each, and the structure to unflatten them."""

    leaves: list[Leaf]
    kinds: list[Kind]
    structure: Structure


def kind_of(leaf: Leaf) -> Kind:
    """The kind of a leaf. A leaf that cannot be a gradient is a TypeError that says what is allowed."""
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
    """Flatten a tree. A leaf that cannot be a gradient is a TypeError that names its place."""
    leaves, structure = _walk(tree)
    kinds: list[Kind] = []
    try:
        for leaf in leaves:
            kinds.append(kind_of(leaf))  # noqa: PERF401 - their number says which leaf failed
    except TypeError as error:
        raise TypeError(f"the leaf at {leaf_names(tree)[len(kinds)]} {error}") from None
    return Flat(leaves, kinds, structure)


def flatten_like(structure: Structure, tree: Tree) -> Flat:
    """Flatten a tree in the order of `structure`. A tree of another structure is a ValueError.

    Dicts with the same keys in another order have the same structure.
    """
    try:
        leaves = structure.flatten_up_to(tree)
        # flatten_up_to accepts a whole branch where the structure has a leaf; kind_of refuses it.
        return Flat(leaves, list(map(kind_of, leaves)), structure)
    except (TypeError, ValueError):
        flatten(tree)  # a leaf that cannot be a gradient is the more useful error
        difference = _difference(structure, tree)
        raise ValueError(f"the tree has another structure than the first of this window: {difference}") from None


def copy_leaves(flat: Flat) -> list[Leaf]:
    """New arrays, half precision widened to float32."""
    return [kind.library.copy(leaf) for leaf, kind in zip(flat.leaves, flat.kinds, strict=True)]


def all_finite(flat: Flat) -> bool:
    """Whether no leaf holds a NaN or an Inf. One call per library."""
    by_library: dict[Library, list[Leaf]] = {}
    for leaf, kind in zip(flat.leaves, flat.kinds, strict=True):
        by_library.setdefault(kind.library, []).append(leaf)
    return all(library.all_finite(leaves) for library, leaves in by_library.items())


def leaf_names(tree: Tree) -> list[str]:
    """The place of each leaf, written as an index expression."""
    structure = _walk(tree)[1]
    walk: Any = _pytree if isinstance(structure, _pytree.TreeSpec) else _jax().tree_util
    return [walk.keystr(path) or "the root" for path, _ in walk.tree_flatten_with_path(tree)[0]]


def is_traced(leaf: Leaf) -> bool:
    """Whether JAX is tracing this leaf, so that it has no value yet."""
    jax = _jax()
    return jax is not None and isinstance(leaf, jax.core.Tracer)


def _jax() -> Any:
    return sys.modules.get("jax")


def _walk(tree: Tree) -> tuple[list[Leaf], Structure]:
    leaves, structure = _pytree.tree_flatten(tree)
    # Torch takes any unknown type for a leaf: a JAX array, but also an nnx.State, which JAX can flatten.
    if _jax() is not None and not all(map(_torch_knows, leaves)):
        leaves, structure = _jax().tree_util.tree_flatten(tree)
    return leaves, structure


def _torch_knows(leaf: Leaf) -> bool:
    return leaf is None or isinstance(leaf, (torch.Tensor, np.ndarray))


def _difference(structure: Structure, tree: Tree) -> str:
    """The leaves in which two structures differ, for an error message."""
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
