"""Durable jobs: the store, the runner that claims and watches, the template that forks. Never imports torch."""
