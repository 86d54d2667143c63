"""Training, as each rank of an attempt runs it.

Start at loop.py: one screen, the whole of training. main.py is the process around it, run.py holds everything a rank
trains with, share.py runs a share of a window (packing/cut.py cuts it), vote.py makes all ranks agree, startup.py and
epoch.py come before and after. May import training's other rooms, memory, recipe and accumulation; never jobs or api.
"""
