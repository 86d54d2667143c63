"""A child process to start, and one that was started: what every launcher takes and gives."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class ChildSpec:
    """What a child shall run."""

    name: str
    """The process's name, as `ps` shows it."""

    target: str
    """`package.module:function`, called with `arguments`; what it returns is the exit status."""

    arguments: tuple[str, ...] = ()
    log: Path
    """A file that takes its output. Never a pipe: one that nobody reads stops a training."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """On top of the launcher's own."""

    niceness: int = 0
    """The least that it has, whatever process starts it (`onyx.training.contract.child_process`)."""


@dataclass(frozen=True)
class ChildExit:
    """How a child ended."""

    status: int | None
    """Its exit status; None when a signal ended it or nobody knows."""

    signal: int | None = None
    """The signal that ended it."""


class Child(Protocol):
    """A process that was started."""

    pid: int

    async def wait(self) -> ChildExit:
        """Wait for its end. May be called more than once."""
        ...

    def send(self, signal: int) -> None:
        """Send it a signal, unless it has ended."""
        ...

    def beat(self) -> None:
        """Let it know that its runner lives."""
        ...

    def close(self) -> None:
        """Let go of its lifeline: it exits if it still runs."""
        ...


class Launcher(Protocol):
    """Starts children. Local processes now, a cluster engine later."""

    async def start(self, work: ChildSpec) -> Child: ...

    async def close(self) -> None:
        """Stop launching. Children end with their lifelines."""
        ...
