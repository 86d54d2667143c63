"""Starts child processes: ranks, helpers, trackers and chat models, each with a log and a lifeline.

Start with `launcher.py` (what every launcher takes and gives), then `fork_launcher.py`, which asks the process of
`fork_server.py` for forks, and `subprocess_launcher.py`, which starts an interpreter per child. `child.py` runs inside
a child. `launch_service.py` starts children for the API. May import `training.contract` and `memory.devices`; no store.
"""
