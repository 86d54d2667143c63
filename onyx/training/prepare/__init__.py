"""Everything that is decided before a job gets a device. Runs in helper processes with low priority.

Imports `training/data`, `training/models`, `training/contract`, `onyx/memory` and `onyx/recipe`. Start with `main.py`
(model, data, plan), then `plan_job.py`. `plan_estimate.py` plans without a job, `cpu_precision_probe.py` tries half
precisions on this CPU.
"""
