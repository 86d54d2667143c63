"""What a rank writes for users: the finished model, the snapshots of epochs (`publish.py`) and the model card.

Imports `training/contract`, `training/state` and the `Run` of `training/rank`. Start with `publish.py`.
"""
