"""The commands of `onyx`: one module per command or group of commands; `onyx/cli/app.py` registers them.

submit, watch, jobs, download, models and plan talk to a service over HTTP (`onyx/cli/client.py`); serve, keys, db and
doctor run on the service's host (`onyx/cli/operator.py`). Start reading with jobs.py.
"""
