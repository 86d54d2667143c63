"""How many bytes a training step needs, for every shape of micro-batch.

Imports devices, errors, `memory/recipe.py` and the recipe room. Start with `estimate.py`: it runs `probe.py` under fake
tensors at two small depths, and `polynomial.py` turns its log into a `Footprint`. `calibrate.py` measures the overhead
of a process. `stored.py` keeps both, and is what planning calls: it needs torch only for what is not stored.
"""
