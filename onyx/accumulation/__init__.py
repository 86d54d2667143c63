"""Exact gradient accumulation: many micro-batches, one optimizer update, the gradient of one big batch.

Of Onyx it imports `onyx.fs` only: nothing here depends on jobs or HTTP.
Start with `window.py` (the one place that divides) and `boundary.py` (the one place that steps the optimizer).
`functional.py`, `engine.py`, `system/` and `ads/` are the four documented interfaces; `docs/` has a page for each, and
"document 002" and so on are the specifications that they implement. `ddp.py` and `exchange.py` are for several ranks.
"""
