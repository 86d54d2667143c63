"""What a user must change. Each kind of mistake is its own type; all of them become an error.json. Needs no torch."""

from collections.abc import Sequence
from typing import Any

from onyx.training.attempt import Failure


class UserError(Exception):
    """The job cannot work as it was asked for. Never retried."""

    def __init__(
        self, code: str, message: str, *, param: str | None = None, findings: Sequence[dict[str, Any]] = ()
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.findings = list(findings)

    def failure(self) -> Failure:
        """What error.json holds."""
        return Failure(code=self.code, message=self.message, param=self.param, findings=self.findings)


class ModelError(UserError):
    """The model cannot be found, read or trained."""

    def __init__(self, code: str, message: str, *, param: str | None = "model") -> None:
        super().__init__(code, message, param=param)


class DataError(UserError):
    """The data cannot be found, read or used."""

    def __init__(
        self, code: str, message: str, *, param: str | None = "data", findings: Sequence[dict[str, Any]] = ()
    ) -> None:
        super().__init__(code, message, param=param, findings=findings)
