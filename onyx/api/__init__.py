"""The HTTP API of Onyx: translates between requests and `onyx.jobs`. Never imports torch.

Start with `app.py` (all routers) and `app_context.py` (what requests share). A POST of a training passes
`onyx_route.py` (limits, errors), `app_context.py` (who is calling), `routes/training.py`, `create_training.py` and
`training_request.py` (from body to JobSpec). `schemas/` has bodies and answers; `openai/` is OpenAI's API.
May import `onyx.jobs`, `onyx.memory.devices`, `onyx.settings` and the torch-free contracts of `onyx.training`.
"""
