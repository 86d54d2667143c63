from pathlib import Path

import pytest

from onyx.jobs.disk_quota import DiskQuota, free_bytes, is_low
from onyx.jobs.errors import DiskQuotaError, LowDiskError
from onyx.jobs.ids import JobKind, make_file_id
from onyx.settings import Settings
from tests.jobs.store_harness import FAILURE, SPEC, StoreHarness


def put(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)


async def test_jobs_and_files_of_an_owner_count_together(harness: StoreHarness, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, owner_disk_bytes=1000)
    quota = DiskQuota(settings, harness.store)
    assert await quota.refusal("ann") is None
    job = (await harness.running("ann")).job
    put(settings.job_dir(job.id) / "checkpoints" / "tensors", 600)
    assert await quota.refusal("ann") is None
    assert await quota.refusal("ann", 400) is None
    too_much = await quota.refusal("ann", 401)
    assert isinstance(too_much, DiskQuotaError)
    assert "600 of the 1,000 bytes" in str(too_much)
    file_id = make_file_id()
    await harness.store.uploads.put(file_id, "ann", purpose="fine-tune", filename="a.jsonl", size=400)
    assert isinstance(await quota.refusal("ann"), DiskQuotaError)
    assert await quota.refusal("bob", 1000) is None


async def test_a_finished_job_is_measured_again_after_a_removal(harness: StoreHarness, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, owner_disk_bytes=1000)
    quota = DiskQuota(settings, harness.store)
    claimed = await harness.running("ann")
    folder = settings.job_dir(claimed.job.id)
    put(folder / "model" / "weights", 100)
    assert await quota.used("ann") == 100
    put(folder / "checkpoints" / "tensors", 900)
    assert await quota.used("ann") == 1000
    await harness.store.attempts.report_failed(claimed.lease, FAILURE)
    assert await quota.used("ann") == 1000
    (folder / "checkpoints" / "tensors").unlink()
    (folder / "checkpoints").rmdir()
    assert await quota.used("ann") == 100


async def test_a_nearly_full_disk_refuses_every_owner(harness: StoreHarness, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, free_disk_bytes=2**62)
    assert is_low(settings)
    assert isinstance(await DiskQuota(settings, harness.store).refusal("ann"), LowDiskError)
    assert not is_low(Settings(home=tmp_path, free_disk_bytes=0))
    assert is_low(Settings(home=tmp_path, free_disk_bytes=0), more=2 * free_bytes(tmp_path))


async def test_a_refusal_does_not_hide_the_job_of_an_earlier_request(harness: StoreHarness) -> None:
    made = await harness.store.jobs.create(SPEC, "ann", JobKind.ACCUMULATION, idempotency_key="k")
    refusal = DiskQuotaError("full")
    again = await harness.store.jobs.create(SPEC, "ann", JobKind.ACCUMULATION, idempotency_key="k", refusal=refusal)
    assert again.id == made.id
    with pytest.raises(DiskQuotaError, match="full"):
        await harness.store.jobs.create(SPEC, "ann", JobKind.ACCUMULATION, idempotency_key="other", refusal=refusal)
