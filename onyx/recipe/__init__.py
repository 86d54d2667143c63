"""How a step is computed: model and adapter (`model.py`), mixed precision, optimizer (`optimizer.py`).

Ranks run this and the planner measures it, so that a plan cannot drift from the run. Imports accumulation; `memory` and
`training` import it. Start with `model.py`.
"""
