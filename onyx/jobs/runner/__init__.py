"""The runner process: claims jobs under leases, prepares and trains them in child processes, deletes old files.

Start with `main.py` (start, claim loop, stop), then `prepare_job.py` and `train_job.py`, one claimed job each.
`lease_keeper.py` renews leases, `event_mirror.py` writes ranks' events to the store, `verdict.py` judges how an
attempt ended. Clients use only `autostart.py`, `runner_lock.py` and `bulletin.py`. May import `jobs.store`,
`jobs.launch`, `jobs.notify`, `jobs.playground`, `memory.devices` and `training.contract`; never torch.
"""
