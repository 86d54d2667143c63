"""What every launcher takes and gives: a child process to start, and one that was started."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class ChildSpec:
    """A child to start."""

    name: str
    """The process's name, as `ps` shows it."""

    target: str
    """`package.module:function`, called with `arguments`; what it returns is the exit status."""

    arguments: tuple[str, ...] = ()
    log: Path
    """A file for its output. Never a pipe: one that is not read would stop a training."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the launcher's own environment."""

    niceness: int = 0
    """The least niceness that it runs at (`onyx.training.contract.child_process`)."""


@dataclass(frozen=True)
class ChildExit:
    """How a child ended."""

    status: int | None
    """Its exit status; None when a signal ended it or its end is unknown."""

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
        """Send a byte on its lifeline: its runner lives."""
        ...

    def close(self) -> None:
        """Close its lifeline: it exits if it still runs."""
        ...


class Launcher(Protocol):
    """Starts children."""

    async def start(self, spec: ChildSpec) -> Child: ...

    async def close(self) -> None:
        """Start no more children. Those that run end with their lifelines."""
        ...
