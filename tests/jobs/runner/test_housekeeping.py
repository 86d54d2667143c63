import os
import time
from pathlib import Path

import pytest

from onyx.jobs.ids import JobKind, make_file_id
from onyx.jobs.models import DeviceNeed
from onyx.jobs.runner.housekeeping import DAY, Aged, Due, Housekeeping, due, orphans, surplus, unused
from onyx.jobs.store.uploads import upload_path
from onyx.settings import Settings
from onyx.training.contract.spec import DataSpec, JobSpec
from tests.jobs.store_harness import CPU, FAILURE, SPEC, StoreHarness

OLD = time.time() - 3 * DAY


def age(path: Path) -> Path:
    os.utime(path, (OLD, OLD))
    return path


def make(path: Path, size: int = 10) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


@pytest.mark.parametrize(
    ("working", "whole", "days", "expected"),
    [
        (None, None, 1000, Due.NOTHING),
        (2, None, 1, Due.NOTHING),
        (2, None, 2, Due.WORKING),
        (2, 5, 4, Due.WORKING),
        (2, 5, 5, Due.ALL),
        (None, 5, 4, Due.NOTHING),
        (0, None, 0, Due.WORKING),
    ],
)
def test_what_of_a_finished_job_is_due(
    working: float | None, whole: float | None, days: float, expected: Due, tmp_path: Path
) -> None:
    settings = Settings(home=tmp_path, keep_working_days=working, keep_job_days=whole)
    assert due(1000.0, 1000.0 + days * DAY, settings) is expected
    assert due(None, 1e12, settings) is Due.NOTHING


def test_old_prepared_data_that_no_job_needs_is_deleted() -> None:
    there = [Aged(Path("data/used"), OLD), Aged(Path("data/new"), time.time()), Aged(Path("data/old"), OLD)]
    assert [each.path.name for each in unused(there, frozenset({"used"}), time.time())] == ["old"]


def test_only_what_onyx_named_can_be_an_orphan() -> None:
    job = "accumulation_1_0123456789"
    there = [Aged(Path("jobs") / name, OLD) for name in (job, "my notes", "README.md")]
    assert [each.path.name for each in orphans(there, {}, time.time())] == [job]
    assert orphans(there, {job: None}, time.time()) == []
    assert orphans([Aged(Path("jobs") / job, time.time())], {}, time.time()) == []


def test_the_oldest_entries_of_a_cache_go_first() -> None:
    entries = [Aged(Path(str(n)), changed=n, size=10) for n in (3, 1, 2)]
    assert [each.path.name for each in surplus(entries, 30)] == []
    assert [each.path.name for each in surplus(entries, 15)] == ["1", "2"]
    assert len(surplus(entries, 0)) == 3


async def finished(harness: StoreHarness, owner: str = "ann") -> str:
    """A job that has failed, with files."""
    claimed = await harness.running(owner)
    await harness.store.attempts.report_failed(claimed.lease, FAILURE)
    return claimed.job.id


def files_of(settings: Settings, job_id: str) -> Path:
    folder = settings.job_dir(job_id)
    for name in ("checkpoints/update-1/state.json", "attempts/2/rank-0.log", "model/model.safetensors", "metrics.csv"):
        make(folder / name)
    return folder


async def test_working_files_go_first_and_the_whole_job_later(harness: StoreHarness, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, keep_working_days=1, keep_job_days=7)
    housekeeping = Housekeeping(settings, harness.store)
    job_id = await finished(harness)
    folder = files_of(settings, job_id)
    running = (await harness.running()).job.id
    files_of(settings, running)

    assert not any((await housekeeping.round()).values())
    harness.clock.ahead += 2 * DAY
    assert (await housekeeping.round())["working_files"] == 1
    assert sorted(path.name for path in folder.iterdir()) == ["metrics.csv", "model"]
    assert not any((await housekeeping.round()).values())
    harness.clock.ahead += 6 * DAY
    assert (await housekeeping.round())["jobs"] == 1
    assert not folder.exists()
    assert await harness.store.jobs.get(job_id) is None
    assert await harness.store.events.list(job_id) == ()
    assert (settings.job_dir(running) / "checkpoints").exists()


async def test_by_default_everything_is_kept(harness: StoreHarness, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    folder = files_of(settings, await finished(harness))
    harness.clock.ahead += 1000 * DAY
    assert not any((await Housekeeping(settings, harness.store).round()).values())
    assert (folder / "checkpoints").exists()


async def test_a_model_that_an_unfinished_job_builds_on_stays(harness: StoreHarness, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, keep_job_days=0)
    base, other = await finished(harness), await finished(harness)
    spec = JobSpec(model=f"{base}:epoch-1", data=SPEC.data)
    await harness.store.jobs.create(spec, "ann", JobKind.ACCUMULATION)
    assert (await Housekeeping(settings, harness.store).round())["jobs"] == 1
    assert await harness.store.jobs.get(base) is not None
    assert await harness.store.jobs.get(other) is None


async def test_expired_uploads_that_no_job_reads_are_deleted(harness: StoreHarness, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    ids = [make_file_id() for _ in range(3)]
    paths = [make(upload_path(tmp_path, file_id, ".jsonl")) for file_id in ids]
    for file_id, seconds in zip(ids, (60.0, 60.0, None), strict=True):
        await harness.store.uploads.put(
            file_id, "ann", purpose="fine-tune", filename="a.jsonl", size=10, expires_after=seconds
        )
    reading = JobSpec(model="onyx/tiny", data=DataSpec(path=str(paths[0])))
    job = await harness.store.jobs.create(reading, "ann", JobKind.ACCUMULATION)
    housekeeping = Housekeeping(settings, harness.store)
    assert (await housekeeping.round())["uploads"] == 0
    harness.clock.ahead += 61
    assert (await housekeeping.round())["uploads"] == 1
    assert [path.exists() for path in paths] == [True, False, True]
    await harness.store.control.cancel(job.id)
    assert (await housekeeping.round())["uploads"] == 1
    assert [path.exists() for path in paths] == [False, False, True]


async def test_data_orphans_and_the_cache(harness: StoreHarness, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, planner_cache_bytes=25)
    claimed = await harness.running()
    used = make(tmp_path / "data" / "used" / "meta.json").parent
    await _prepare_with(harness, used)
    job = age(make(settings.job_dir(claimed.job.id) / "metrics.csv").parent)
    kept = [age(used), make(tmp_path / "data" / "new" / "meta.json").parent, age(make(tmp_path / "data" / ".x.lock"))]
    gone = [
        age(make(tmp_path / "data" / "old" / "meta.json").parent),
        age(make(tmp_path / "jobs" / "ftjob-0123456789abcdefghijklmn" / "metrics.csv").parent),
        age(make(upload_path(tmp_path, make_file_id(), ".csv"))),
        age(make(tmp_path / "uploads" / f"{'a' * 64}.jsonl")),
        age(make(tmp_path / "cache" / "footprint" / "a.json")),
    ]
    kept += [make(tmp_path / "cache" / "footprint" / f"{name}.json") for name in "bc"]
    report = await Housekeeping(settings, harness.store).round()
    assert report == {"jobs": 0, "working_files": 0, "orphans": 2, "uploads": 0, "data": 2, "cache": 1, "leftovers": 0}
    assert [path for path in gone if path.exists()] == []
    assert [path for path in (*kept, job) if not path.exists()] == []


async def test_leftovers_of_killed_processes_are_deleted(harness: StoreHarness, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    job = settings.job_dir((await harness.running()).job.id)
    upload = upload_path(tmp_path, make_file_id(), ".csv")
    gone = [
        make(job.parent / ".ftjob-0123456789abcdefghijklmn.1.gone" / "metrics.csv").parent,
        make(upload.with_name(f".{upload.name}.1.gone")),
        make(tmp_path / "data" / ".0123.1.gone" / "meta.json").parent,
        make(tmp_path / "cache" / "footprint" / ".a.json.1.gone"),
        age(make(upload.with_name(".x.jsonl.1.part"))),
        age(age(make(tmp_path / "data" / ".4567.1.part" / "meta.json")).parent),
        age(age(make(job / ".model.123.part" / "model.safetensors")).parent),
    ]
    kept = [
        make(upload.with_name(".y.jsonl.2.part")),
        make(tmp_path / "data" / ".89ab.1.part" / "meta.json"),
        age(make(job / ".model.456.part" / "model.safetensors").parent),  # old, and its file still grows
        age(make(tmp_path / "data" / ".0123.lock")),
    ]
    housekeeping = Housekeeping(settings, harness.store)
    assert (await housekeeping.round())["leftovers"] == len(gone)
    assert [path for path in gone if path.exists()] == []
    assert [path for path in kept if not path.exists()] == []
    assert (await housekeeping.round())["leftovers"] == 0


async def _prepare_with(harness: StoreHarness, data_dir: Path) -> None:
    """A job that waits for devices and needs this data."""
    await harness.job("bob")
    claimed = await harness.store.claims.claim_validating(await harness.runner("preparer"))
    assert claimed is not None
    await harness.store.attempts.report_prepared(claimed.lease, [DeviceNeed(kind=CPU)], {"data_dir": str(data_dir)})
