"""Accumulation for loops that hold their gradients as a value: a tree of torch, NumPy or JAX arrays."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onyx.accumulation.check import flag, whole
from onyx.accumulation.loss_scaling import DynamicLossScaler, DynamicLossScalerConfig
from onyx.accumulation.tree import Flat, Tree, copy_leaves, flatten, flatten_like, is_traced, leaf_names

__all__ = [
    "DynamicLossScaler",
    "DynamicLossScalerConfig",
    "GradientAccumulator",
    "GradientAccumulatorConfig",
]

STATE_KEYS = {"accumulation_steps", "normalize_gradients", "step_base", "current_step", "accumulated_grads"}


@dataclass(frozen=True)
class GradientAccumulatorConfig:
    """How many micro-batches make an update, and whether it uses their mean or their sum."""

    accumulation_steps: int = 1
    normalize_gradients: bool = True

    def __post_init__(self) -> None:
        whole("accumulation_steps", self.accumulation_steps)
        flag("normalize_gradients", self.normalize_gradients)


class GradientAccumulator:
    """Sums the gradients of micro-batches and returns their mean.

    Half-precision leaves are summed, and come back, in float32. Your arrays are neither kept nor changed.
    """

    def __init__(self, config: GradientAccumulatorConfig, *, step_base: int = 1) -> None:
        if not isinstance(config, GradientAccumulatorConfig):
            raise ValueError(f"config must be a GradientAccumulatorConfig, got {config!r}")  # noqa: TRY004
        if whole("step_base", step_base, at_least=0) > 1:
            raise ValueError(f"step_base must be 0 or 1, the number of the first step, got {step_base}")
        self.config = config
        self.step_base = int(step_base)
        self.reset()

    @property
    def accumulated_grads(self) -> Tree | None:
        """The sums so far, None when there are none. These are the accumulator's own arrays: do not change them."""
        return None if self._window is None else self._window.structure.unflatten(self._window.leaves)

    @property
    def current_step(self) -> int:
        """Micro-batches in the window."""
        return self._current_step

    def accumulate(self, grads: Tree) -> None:
        """Add the gradients of one micro-batch. A tree that is refused leaves the window as it was."""
        if grads is None:
            raise TypeError("grads is None: give a tree of arrays")
        if self._window is None:
            self._open(grads)
        else:
            _add(self._window, flatten_like(self._window.structure, grads))
        self._current_step += 1

    def should_update(self, step: int) -> bool:
        """Whether the window is full; when it is empty, whether a window ends with this step."""
        step = whole("step", step, at_least=0)
        if self._current_step:
            return self._current_step >= self.config.accumulation_steps
        return (step + 1 - self.step_base) % self.config.accumulation_steps == 0

    def get_gradients(self) -> Tree:
        """Return the mean of the window (or its sum) and reset. The arrays then belong to the caller.

        The mean is over the micro-batches that came, so a partial window counts in full.
        """
        if self._window is None:
            raise RuntimeError("No gradients accumulated. Call accumulate() first.")
        window, count = self._window, self._current_step
        self.reset()
        if self.config.normalize_gradients:
            for place, kind in enumerate(window.kinds):
                window.leaves[place] = kind.library.divide(window.leaves[place], count)
        return window.structure.unflatten(window.leaves)

    def reset(self) -> None:
        """Drop the window."""
        self._window: Flat | None = None  # the first tree, with sums in place of its leaves
        self._current_step = 0

    def state_dict(self) -> dict[str, Any]:
        """The settings and the open window, in copies."""
        window = self._window
        grads = None if window is None else window.structure.unflatten(copy_leaves(window))
        return {**self._settings(), "current_step": self._current_step, "accumulated_grads": grads}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue a saved window, or refuse the state and change nothing."""
        if not isinstance(state, Mapping) or set(state) != STATE_KEYS:
            raise ValueError(f"state must be a mapping with the keys {sorted(STATE_KEYS)}")
        for name, value in self._settings().items():
            if state[name] != value:
                raise ValueError(f"{name} is {value} here and {state[name]!r} in the state: they must be the same")
        steps, grads = whole("current_step", state["current_step"], at_least=0), state["accumulated_grads"]
        if (steps == 0) != (grads is None):
            raise ValueError(f"accumulated_grads must be None if and only if current_step is 0, got {steps} steps")
        if grads is None:
            self.reset()
        else:
            self._open(grads)
        self._current_step = steps

    def _settings(self) -> dict[str, Any]:
        config = self.config
        return {
            "accumulation_steps": int(config.accumulation_steps),
            "normalize_gradients": config.normalize_gradients,
            "step_base": self.step_base,
        }

    def _open(self, grads: Tree) -> None:
        """Start a window with a copy of the first gradients: the caller may overwrite its arrays."""
        flat = flatten(grads)
        _refuse_traced(flat)
        self._window = flat._replace(leaves=copy_leaves(flat))


def _add(window: Flat, flat: Flat) -> None:
    """Add to an open window. All leaves are checked first, so that a refused tree has added nothing."""
    _refuse_traced(flat)
    for place, (was, now) in enumerate(zip(window.kinds, flat.kinds, strict=True)):
        if was != now:
            name = leaf_names(window.structure.unflatten(window.leaves))[place]
            raise ValueError(f"the leaf at {name} was {was} and is now {now}")
    for place, (leaf, kind) in enumerate(zip(flat.leaves, flat.kinds, strict=True)):
        # One at a time, so that no second set of sums is alive where a library cannot add in place.
        window.leaves[place] = kind.library.add(window.leaves[place], leaf)


def _refuse_traced(flat: Flat) -> None:
    if any(map(is_traced, flat.leaves)):
        raise TypeError("the gradients are being traced: return them from the compiled function, then accumulate")
