"""Tokens per second beside others' trainers: same model, data, effective batch and threads, in turns."""
