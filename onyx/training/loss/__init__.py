"""The loss of a micro-batch: objective.py says what a job learns by, compiled_loss.py runs it through torch.compile.

Imports packing, memory's training step and the contract; knows nothing of ranks.
"""
