"""What can go wrong between a caller and the store. Each message says what to do."""


class StoreError(Exception):
    """The store refuses."""


class LostAttempt(StoreError):  # noqa: N818 - it is what happened, not what was done wrong
    """The attempt is no longer the caller's: stop its ranks, write nothing more."""

    def __init__(self, job_id: str, attempt: int) -> None:
        self.job_id = job_id
        self.attempt = attempt
        super().__init__(
            f"attempt {attempt} at {job_id} has ended or was taken over: stop its ranks and drop its results"
        )


class JobNotFoundError(StoreError):
    """No such job, or not this owner's."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"there is no job {job_id[:80]!r}")


class NotAllowedError(StoreError):
    """The job's status does not permit the change."""


class IdempotencyConflictError(StoreError):
    """The key was used before, for something else."""


class QuotaExceededError(StoreError):
    """The owner has as many unfinished jobs, or stored configs, as the operator permits."""


class DiskQuotaError(StoreError):
    """The owner's jobs and files take as much of the disk as the operator permits. Waiting does not help."""


class LowDiskError(StoreError):
    """The disk of ONYX_HOME is nearly full, whoever's files those are."""


class UnknownRunnerError(StoreError):
    """A runner speaks that never registered, or that was found dead and replaced."""


class BadValueError(StoreError, ValueError):
    """A value that cannot be stored or searched for."""


class StoreUrlError(StoreError, ValueError):
    """The database's address is not one that Onyx can use."""


class StoreUnavailableError(StoreError):
    """The database did not answer, or not in time. What was asked may be asked again."""


class WrongHomeError(StoreError):
    """ONYX_HOME is not the one that the store's jobs have their files in."""


class MigrationError(StoreError):
    """The database's tables are not those of this version of Onyx."""
