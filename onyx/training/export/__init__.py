"""What a rank writes for users: the finished model, the snapshots of epochs (`publish.py`) and the model card.

Imports `training/contract` and `onyx/fs.py`; it gets the rank's `Run` as an argument. Start with `publish.py`.
"""
