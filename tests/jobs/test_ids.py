import pytest

from onyx.jobs.ids import JobKind, is_id, make_config_id, make_job_id, make_runner_id


def test_ids_have_the_documented_forms() -> None:
    assert make_job_id(JobKind.ACCUMULATION, 1700000000.9).startswith("accumulation_1700000000_")
    assert make_job_id(JobKind.LARGE_BATCH, 1700000000.0).startswith("large_batch_1700000000_")
    assert make_job_id(JobKind.FINE_TUNING, 1700000000.0).startswith("ftjob-")
    made = [make_job_id(kind, 1.0) for kind in JobKind] + [make_config_id(2.0), make_runner_id()]
    assert all(is_id(each) for each in made)


def test_ids_are_unique() -> None:
    assert len({make_job_id(JobKind.ACCUMULATION, 0.0) for _ in range(10_000)}) == 10_000


@pytest.mark.parametrize("text", ["", "accumulation_1", "accumulation_1_ABCDEFGHIJ", "ftjob-../../etc/passwd"])
def test_other_text_is_no_id(text: str) -> None:
    assert not is_id(text)
    assert not is_id(make_runner_id() + "\n")
