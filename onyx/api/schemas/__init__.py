"""Pydantic models of the bodies and answers of `onyx.api.routes`. Their field names are the documented API.

Start with `common.py` (what all share: strict bodies, error responses), then `training.py`. Imports no other room than
the torch-free `onyx.training.contract`.
"""
