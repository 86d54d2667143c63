"""What ends a command early."""

USAGE = 2
"""The exit status of a command that was asked for wrongly."""


class CommandFailure(Exception):  # noqa: N818 (not an error of this program)
    """A sentence for the user, and an exit status."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


class ServiceFailure(CommandFailure):
    """The service answered, and the answer is no."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code
        """The HTTP status."""


class AwayFailure(CommandFailure):
    """Nobody answers."""
