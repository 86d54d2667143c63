"""Exact gradient accumulation. Pure torch: knows no job, no HTTP, no file of anybody's.

The core is `window` (what divides) and `boundary` (what steps); `functional`, `engine`, `system` and `ads` are the
four documented faces on it.
"""
