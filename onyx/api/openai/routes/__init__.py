"""The endpoints of OpenAI's API, one module per resource; `onyx/api/openai/router.py` puts them together."""
