"""How a step is computed: optimizer, precision, model and adapter. Ranks run it, and the planner measures it.

Below `memory` and `training`, which both import it, so that a plan cannot drift from the run.
"""
