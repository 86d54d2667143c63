"""A user's mistakes, a type for each kind; all become an error.json. And full disks. Needs no torch."""

import errno
from collections.abc import Sequence
from typing import Any

from onyx.training.contract.attempt import Failure


class UserError(Exception):
    """The job cannot work as specified: the message says what to change. Never retried."""

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


class SupersededError(Exception):
    """A later attempt holds this job: this one must not write any more."""


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FULL_MESSAGES = ("No space left on device", "Disk quota exceeded", "File too large")
"""safetensors raises an error of its own with these texts, not OSError."""


def is_disk_full(error: BaseException) -> bool:
    """Whether a write failed because the disk or the quota is full."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _FULL
    return any(text in str(error) for text in _FULL_MESSAGES)


def disk_full(error: BaseException) -> UserError:
    """The failure that the job's owner sees."""
    return UserError(
        "disk_full",
        f"the disk of ONYX_HOME is full ({error}): free some space and start the job again; "
        "its last checkpoint is intact",
    )
