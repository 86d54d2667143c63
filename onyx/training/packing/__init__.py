"""From prepared samples to micro-batches.

order.py says which samples come next, cut.py cuts a window into shares and micro-batches, samples.py makes the tensors,
and joined_attention.py attends to samples that stand in one row without padding. Imports data and memory's batch type;
knows nothing of ranks.
"""
