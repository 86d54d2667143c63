"""From the data a user gives to an immutable directory of tokens, with every line checked.

Start with `dataset.py`, which calls the others in this order: `sources.py` (find and open; `text_lines.py` and
`tables.py` read), `preference_lines.py`, `row_check.py` and `chat_messages.py` (check), `render.py` (text), `encode.py`
(tokens), `token_store.py` (arrays on disk). Imports `training/contract`, `models/hub.py` and `onyx/fs.py`. Ranks import
only `token_store.py`.
"""
