"""The torch-free values that the service, its helper processes and its ranks exchange.

Imports nothing else of training, and no torch. Start with `spec.py` (what a user wants), then `prepared.py` (what
preparing found) and `attempt.py` (what a rank gets and what it returns). `event_kinds.py` and `chat_protocol.py` are
the vocabulary of events and of the chat process, `metrics_csv.py` and `model_names.py` formats that the API also reads,
`child_process.py` has priority, stop signal and lifeline, `errors.py` the types of a user's mistakes.
"""
