"""Memory plans: which devices there are, what a training step needs on them, and which batch each takes.

- `devices/`: GPUs and slices of the CPU, their memory, limits and heap. No torch.
- `footprint/`: the bytes that a step needs, by a probe under fake tensors, and a process's overhead, measured.
- `planning/`: what fits on a device, how a window is split, what would fit instead, how long it takes.

Imports recipe and accumulation. Start with `planner.py`: `plan(recipe, …)` gives a `Plan`; `recipe.py` says of what.
"""
