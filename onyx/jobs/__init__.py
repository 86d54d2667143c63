"""Durable jobs: from a request to a published model, whatever process dies in between. Never imports torch.

store/ keeps jobs, attempts and events; runner/ claims jobs and watches over their ranks; launch/ starts processes;
notify/ sends webhooks and results; playground/ serves finished models. This folder has what they share: the values
(models.py, records.py, status.py), and the two entry points: home.py for the API and commands, service.py for the
library. May import `onyx.training.contract` and `onyx.memory`. Start with home.py, then store/store.py.
"""
