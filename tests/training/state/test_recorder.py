"""What rank 0 writes."""

import pytest

from onyx.training.contract.errors import SupersededError
from tests.training.job import Job, run_inline


def test_an_attempt_that_is_not_the_latest_saves_nothing(job: Job) -> None:
    (job.dir / "attempts" / "2").mkdir(parents=True)
    with pytest.raises(SupersededError, match="attempt 2 holds this job"):
        run_inline(job)
    assert list((job.dir / "checkpoints").iterdir()) == []
