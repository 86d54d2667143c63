"""The endpoints below `/gradient-accumulation`, one module per resource, and the operator's in `operations.py`.

A handler only translates: it takes a body from `onyx.api.schemas`, calls the store or `Home`, and builds the answer.
Start with `training.py`. `onyx.api.router` includes all of them.
"""
