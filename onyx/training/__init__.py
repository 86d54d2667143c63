"""Preparing and training one job, and answering chats with its model. Knows no job store and no HTTP.

`contract/` has the torch-free values that go in and out. `prepare/` runs before training (with `data/` and `models/`),
`rank/` is a training process: `rank/main.py`, then `rank/loop.py`. It uses `packing/`, `loss/`, `state/` and `export/`.
`chat/` is the process that answers with a trained model. `preload.py` is imported by the fork server.
"""
