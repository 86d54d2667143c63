"""Training speed beside other trainers: same model, data, effective batch and threads, in turns."""
