"""Why a rank ends early: by name, so that the runner knows what to do."""

import errno

from onyx.training.errors import UserError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FULL_MESSAGES = ("No space left on device", "Disk quota exceeded", "File too large")
"""What safetensors' own writer says, which raises no OSError."""


class SupersededError(Exception):
    """A later attempt holds this job: this one must not write any more."""


def is_disk_full(error: BaseException) -> bool:
    """Whether a write failed because there is no room for it."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _FULL
    return any(said in str(error) for said in _FULL_MESSAGES)


def disk_full(error: BaseException) -> UserError:
    return UserError(
        "disk_full",
        f"no room on the disk of ONYX_HOME ({error}): free some space and start the job again; "
        "its last checkpoint is intact",
    )
