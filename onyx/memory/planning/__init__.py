"""The steps of the planner, which `memory/planner.py` calls in order.

Imports footprint and devices. Start with `request.py` and `plan.py`, what goes in and comes out; then `device_fit.py`
(what fits on one device, how a window is split), `alternatives.py`, `speed_choices.py` (compiled? joined?) and
`timing.py`. `module_batch.py` finds the batch of a plain torch module.
"""
