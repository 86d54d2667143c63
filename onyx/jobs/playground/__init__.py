"""Chat with a model on this host's CPU, beside trainings that always come first.

Start with `manager.py`: it keeps at most one model in memory and lets owners take turns (`fair_queue.py`). `session.py`
is the connection to the chat process (`training/chat/main.py`); `capacity.py` says how much memory is spare. May import
`jobs.launch`, `jobs.store`, `memory.devices` and `training.contract`; never torch.
"""
