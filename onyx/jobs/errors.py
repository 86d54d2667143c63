"""Errors of the store. Each message says what to do."""


class StoreError(Exception):
    """The store has refused a call."""


class LostAttempt(StoreError):  # noqa: N818 - an event, not a mistake of the caller
    """The caller no longer holds the attempt: it must stop the ranks and write nothing more."""

    def __init__(self, job_id: str, attempt: int) -> None:
        self.job_id = job_id
        self.attempt = attempt
        super().__init__(
            f"attempt {attempt} of {job_id} has ended or was taken over: stop its ranks and drop its results"
        )


class JobNotFoundError(StoreError):
    """There is no such job, or another owner has it."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"there is no job {job_id[:80]!r}")


class NotAllowedError(StoreError):
    """The job's status does not allow the change."""


class IdempotencyConflictError(StoreError):
    """The idempotency key was used before, for another request."""


class QuotaExceededError(StoreError):
    """The owner has as many unfinished jobs, or stored configs, as the operator allows."""


class DiskQuotaError(StoreError):
    """The owner's jobs and files take as much of the disk as the operator allows. Waiting does not help."""


class LowDiskError(StoreError):
    """The disk of ONYX_HOME is nearly full, whichever owner filled it."""


class UnknownRunnerError(StoreError):
    """The runner never registered, or another runner found it dead and replaced it."""


class BadValueError(StoreError, ValueError):
    """A value that cannot be stored or searched for."""


class StoreUrlError(StoreError, ValueError):
    """The database's address is not one that Onyx can use."""


class StoreUnavailableError(StoreError):
    """The database did not answer, or not in time. The same call may be repeated."""


class WrongHomeError(StoreError):
    """ONYX_HOME is not the directory with the files of this store's jobs."""


class MigrationError(StoreError):
    """The database's tables are not those of this version of Onyx."""
