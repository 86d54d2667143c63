from pathlib import Path

from onyx.jobs.ids import JobKind, result_file_id
from onyx.jobs.notify.result_csv import PURPOSE, table, write_result_file
from onyx.settings import Settings
from tests.jobs.store_harness import RESULT, SPEC, StoreHarness


def test_evaluations_stand_beside_the_update_they_follow() -> None:
    rows = [
        {"update": "1", "loss": "2.5", "token_accuracy": "0.125"},
        {"update": "2", "loss": "2.0", "token_accuracy": ""},  # by a version that did not count
    ]
    scores = [{"epoch": 1, "update": 2, "evaluation_loss": 1.5, "evaluation_accuracy": 0.25}]
    assert table(rows, scores).splitlines() == [
        "step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy",
        "1,2.5,0.125,,",
        "2,2.0,,1.5,0.25",
    ]
    pairs = [{"update": "1", "loss": "0.5", "reward_margin": "1.5", "preference_accuracy": "0.75"}]
    assert table(pairs, []).splitlines()[1] == "1,0.5,0.75,,"


async def test_the_file_is_the_owners_and_written_once(harness: StoreHarness, tmp_path: Path) -> None:
    job = await harness.store.jobs.create(SPEC, "ann", JobKind.FINE_TUNING)
    settings = Settings(home=tmp_path)
    settings.job_dir(job.id).mkdir(parents=True)
    (settings.job_dir(job.id) / "metrics.csv").write_text("update,loss\n1,2.5\n")
    for _ in range(2):
        await write_result_file(harness.store, settings, job, RESULT)
    [file], _ = await harness.store.uploads.list("ann", purpose=PURPOSE)
    assert file.id == result_file_id(job.id)
    assert file.path(tmp_path).read_text().splitlines()[1:] == ["1,2.5,,,"]
    assert await harness.store.uploads.existing([file.id, "file-other"]) == {file.id}


async def test_a_file_that_cannot_be_written_is_no_error(harness: StoreHarness, tmp_path: Path) -> None:
    job = await harness.store.jobs.create(SPEC, "ann", JobKind.FINE_TUNING)
    (tmp_path / "uploads").write_text("not a directory")
    await write_result_file(harness.store, Settings(home=tmp_path), job, RESULT)
    assert await harness.store.uploads.existing([result_file_id(job.id)]) == frozenset()
