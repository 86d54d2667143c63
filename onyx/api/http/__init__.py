"""What every request passes, whichever route it takes: size limits, caller, rate limits, errors, audit log.

Start with `onyx.api.onyx_route`, which calls these in order. Knows nothing of trainings: that is `onyx.api.routes`.
May import `onyx.jobs` for its errors and API keys.
"""
