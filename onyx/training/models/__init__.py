"""From a model's name to a directory that transformers loads, and from there to the model that a rank trains.

Imports `training/contract`, `onyx/recipe` and `onyx/fs.py`. Start with `resolve.py`, which finds the directory
(`tiny.py`, `smollm2.py`, `hub.py`, `adapter.py`) and has `directory.py` check it. `load.py` and `tokenizer.py` load it;
`exactness.py` finds what keeps a model from being trained exactly.
"""
