import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from onyx.api.openai.routes.models import remove
from onyx.jobs.home import Home
from onyx.jobs.ids import JobKind
from onyx.jobs.models import DeviceNeed, Job, RunnerDevice
from onyx.jobs.process_identity import this_process
from onyx.jobs.spec_builder import job_spec
from onyx.settings import Settings
from onyx.training.contract.attempt import Event, Result
from tests.api.openai.helpers import create, refused, upload
from tests.api.service import service

SNAPSHOT = {
    "epoch": 1,
    "update": 6,
    "train_loss": 2.5,
    "train_accuracy": 0.25,
    "evaluation_loss": 2.0,
    "evaluation_accuracy": 0.5,
}


@pytest.fixture
def settings(home: Path, tmp_path: Path) -> Settings:
    (tmp_path / "models" / "ours" / "small").mkdir(parents=True)
    (tmp_path / "models" / "ours" / "small" / "config.json").write_text("{}")
    return Settings(home=home, model_root=tmp_path / "models", embedded_runner=False)


@pytest.fixture
def job(settings: Settings) -> Job:
    """A succeeded job with a model and a snapshot."""
    return asyncio.run(_succeeded(settings))


@pytest.fixture
def client(settings: Settings, job: Job) -> Iterator[TestClient]:
    with service(settings) as client:
        yield client


async def _succeeded(settings: Settings) -> Job:
    home = await Home.open(settings)
    store = home.store
    made = await store.jobs.create(
        job_spec(model="onyx/tiny", data={"texts": ["a"]}, training={}, window=1), "local", JobKind.FINE_TUNING
    )
    runner = await store.runners.register(this_process())
    claimed = await store.claims.claim_validating(runner)
    assert claimed is not None
    await store.attempts.report_prepared(claimed.lease, [DeviceNeed(kind="cpu")], {})
    claimed = await store.claims.claim_queued(runner, [RunnerDevice(name="cpu:0", kind="cpu")])
    assert claimed is not None
    await store.events.mirror(claimed.lease, [Event(line=1, time=50.0, kind="snapshot", message="kept", data=SNAPSHOT)])
    for name in ("model", "snapshots/epoch-1"):
        (settings.job_dir(made.id) / name).mkdir(parents=True)
    numbers = {"updates": 6, "skipped": 0, "samples": 6, "trained_tokens": 60, "seconds": 1.0}
    losses = {"final_loss": 2.0, "best_loss": 2.0, "best_evaluation_loss": 2.0}
    plan = {"peak_bytes": [1], "effective_batch": 1, "micro_batch": 1, "accumulation_steps": 1}
    done = await store.attempts.report_succeeded(
        claimed.lease, Result.model_validate(numbers | losses | plan | {"epochs": [SNAPSHOT]})
    )
    await home.close()
    return done


def path_of(name: str) -> str:
    return f"/v1/models/{quote(name, safe='')}"


def test_usable_models_are_listed_and_retrieved(client: TestClient, job: Job) -> None:
    name = f"ft:onyx/tiny:local::{job.id.removeprefix('ftjob-')}"
    names = [model["id"] for model in client.get("/v1/models").json()["data"]]
    assert {"onyx/tiny", "ours/small", name, f"{name}:ckpt-step-6"} <= set(names)
    for each in names:
        assert client.get(path_of(each)).json()["id"] == each
    for other in (f"{name}:ckpt-step-7", name.replace("local", "else"), "ours", "ours/../ours/small", "gpt-4o"):
        assert refused(client.get(path_of(other)), 404) == ("model", "model_not_found"), other


def test_checkpoints_are_snapshots_with_their_metrics(client: TestClient, job: Job) -> None:
    path = f"/v1/fine_tuning/jobs/{job.id}/checkpoints"
    page = client.get(path).json()
    [checkpoint] = page["data"]
    assert page["first_id"] == page["last_id"] == checkpoint["id"]
    assert page["has_more"] is False
    assert (checkpoint["step_number"], checkpoint["created_at"]) == (6, 50)
    assert checkpoint["metrics"] == {
        "step": 6,
        "train_loss": 2.5,
        "train_mean_token_accuracy": 0.25,
        "valid_loss": 2.0,
        "valid_mean_token_accuracy": 0.5,
        "full_valid_loss": 2.0,
        "full_valid_mean_token_accuracy": 0.5,
    }
    assert client.get(path, params={"after": checkpoint["id"]}).json()["data"] == []
    assert refused(client.get(path, params={"after": "ftckpt_x"}))[0] == "after"


@pytest.mark.parametrize("name", ["x" * 300, "é" * 200, "ours/" + "x" * 300])
def test_a_name_that_is_too_long_for_a_path_is_a_404(client: TestClient, name: str) -> None:
    chat = {"model": name, "messages": [{"role": "user", "content": "hi"}]}
    assert refused(client.post("/v1/chat/completions", json=chat), 404) == ("model", "model_not_found")
    job = {"model": name, "training_file": upload(client)["id"]}
    assert client.post("/v1/fine_tuning/jobs", json=job).status_code in (400, 404)


def test_two_concurrent_deletes_of_a_model_both_succeed(tmp_path: Path) -> None:
    models = [tmp_path / f"job-{number}" / "model" for number in range(200)]
    for model in models:
        model.mkdir(parents=True)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(remove, [models, models])) == [None, None]
    assert not any(list(model.parent.iterdir()) for model in models)


def test_a_model_is_deleted_with_its_checkpoints_unless_a_job_uses_it(
    client: TestClient, job: Job, settings: Settings
) -> None:
    name = f"ft:onyx/tiny:local::{job.id.removeprefix('ftjob-')}"
    user = create(client, model=f"{name}:ckpt-step-6")
    assert refused(client.delete(path_of(name))) == ("model", "in_use")
    client.post(f"/v1/fine_tuning/jobs/{user['id']}/cancel")
    assert client.delete(path_of(name)).json() == {"id": name, "object": "model", "deleted": True}
    assert refused(client.delete(path_of(name)), 404)[1] == "model_not_found"
    assert [path.name for path in settings.job_dir(job.id).iterdir()] == []
    assert client.get(f"/v1/fine_tuning/jobs/{job.id}").json()["status"] == "succeeded"
    assert refused(client.delete(path_of("onyx/tiny")))[0] == "model"
