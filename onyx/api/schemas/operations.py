"""Answers to an operator's probes."""

from onyx.api.schemas.common import Answer


class Alive(Answer):
    status: str


class Ready(Answer):
    """What must be true before requests are sent here."""

    ready: bool
    store: bool
    migrated: bool
    runner: bool
