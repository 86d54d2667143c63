"""The chat process: one model on the CPU, which answers requests over a socket.

`onyx/jobs/playground` starts it and speaks `training/contract/chat_protocol.py` with it. Imports `training/models`,
`training/data/render.py` and `training/contract`. Start with `main.py`; `generate.py` makes an answer.
"""
