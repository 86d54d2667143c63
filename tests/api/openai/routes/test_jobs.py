"""Creating, listing and changing jobs. tests/acceptance tests that they run."""

import asyncio
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr

from onyx.jobs.home import Home
from onyx.settings import Settings
from onyx.training.contract.spec import JobSpec, TrainingSpec
from tests.api.openai.helpers import create, refused, upload
from tests.api.service import service


def spec_of(home: Any, job_id: str) -> JobSpec:
    async def look() -> JobSpec:
        opened = await Home.open(Settings(home=home))
        try:
            return await opened.store.jobs.spec(job_id)
        finally:
            await opened.close()

    return asyncio.run(look())


def test_auto_becomes_numbers(client: TestClient, home: Any) -> None:
    names = ("n_epochs", "batch_size", "learning_rate_multiplier")
    job = create(client, hyperparameters=dict.fromkeys(names, "auto"))
    numbers = job["hyperparameters"]
    assert numbers == {"n_epochs": 10, "batch_size": 4, "learning_rate_multiplier": 1.0}
    assert job["method"] == {"type": "supervised", "supervised": {"hyperparameters": numbers}, "dpo": None}
    spec = spec_of(home, job["id"])
    assert (spec.training.epochs, spec.window, spec.training.learning_rate) == (10, 4, 5e-5)
    assert spec.data.max_length == 2048


def test_every_setting_is_reachable(client: TestClient, home: Any) -> None:
    training: dict[str, Any] = {
        "learning_rate_rule": "sqrt",
        "weight_decay": 0.5,
        "beta1": 0.8,
        "beta2": 0.9,
        "epsilon": 1e-6,
        "schedule": "cosine",
        "warmup_fraction": 0.25,
        "gradient_clipping": None,
        "merge_adapter": True,
        "precision": "float32",
        "gradient_checkpointing": True,
        "deterministic": False,
        "compile": False,
        "early_stopping_patience": 2,
        "max_skipped_in_a_row": 3,
        "save_every_updates": 4,
        "time_limit_seconds": 5.0,
        "accumulation_warmup": 6,
        "accumulation_scheduler": "cosine",
    }
    data: dict[str, Any] = {
        "max_length": 77,
        "overlong": "refuse",
        "evaluation_fraction": 0.5,
        "tolerated_bad_lines": 0.25,
    }
    job_settings: dict[str, Any] = {
        "window": 300,
        "accumulation_steps": 3,
        "devices": 2,
        "gpu_ids": [0, 1],
        "max_memory_usage": 0.5,
        "memory_safety_margin": 0.2,
        "auto_start": False,
    }
    lora = {"lora_r": 5, "lora_alpha": 6.0, "lora_dropout": 0.5, "lora_target_modules": ["q_proj"]}
    job = create(client, seed=3, onyx=training | data | job_settings | lora | {"epochs": 60, "learning_rate": 1.0})
    spec = spec_of(home, job["id"])
    assert {name: getattr(spec.training, name) for name in training} == training
    assert {name: getattr(spec.data, name) for name in data} == data
    assert {name: getattr(spec, name) for name in job_settings} == job_settings
    assert spec.training.lora.model_dump() == {name.removeprefix("lora_"): value for name, value in lora.items()}
    assert (spec.training.epochs, spec.training.learning_rate, spec.training.seed) == (60, 1.0, 3)
    assert spec.training.method == "lora"
    named = {*training, "epochs", "learning_rate", "seed", "method", "lora", "objective", "dpo_beta"}
    assert set(TrainingSpec.model_fields) <= named, "a new setting of a job must be reachable from here"


def test_the_multiplier_scales_the_learning_rate(client: TestClient, home: Any) -> None:
    numbers = {"learning_rate_multiplier": 0.5}
    adapter = create(client, hyperparameters=numbers, onyx={"lora_r": 4})
    assert spec_of(home, adapter["id"]).training.learning_rate == pytest.approx(1e-4)
    given = create(client, hyperparameters=numbers, onyx={"learning_rate": 1e-3})
    assert spec_of(home, given["id"]).training.learning_rate == pytest.approx(5e-4)


def test_dpo_maps_its_beta(client: TestClient, home: Any) -> None:
    method = {"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.3, "n_epochs": 2}}}
    job = create(client, method=method)
    assert job["method"]["dpo"]["hyperparameters"]["beta"] == 0.3
    training = spec_of(home, job["id"]).training
    assert (training.objective, training.dpo_beta, training.epochs) == ("dpo", 0.3, 2)
    assert training.learning_rate == pytest.approx(5e-6)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": "gpt-4o-mini"}, "model"),
        ({"model": "ft:onyx/tiny:local::aaaaaaaaaaaaaaaaaaaaaaaa"}, "model"),
        ({"training_file": "file-aaaaaaaaaaaaaaaaaaaaaaaa"}, "training_file"),
        ({"validation_file": "file-aaaaaaaaaaaaaaaaaaaaaaaa"}, "validation_file"),
        ({"suffix": "x" * 65}, "suffix"),
        ({"seed": -1}, "seed"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"metadata": {str(n): "v" for n in range(17)}}, "metadata"),
        ({"method": {"type": "reinforcement"}}, "method.type"),
        ({"method": {"type": "supervised", "dpo": {}}}, "method"),
        ({"method": {"type": "dpo", "dpo": {"hyperparameters": {"beta": 3}}}}, "method.dpo.hyperparameters.beta"),
        ({"hyperparameters": {"batch_size": 257}}, "hyperparameters.batch_size"),
        ({"hyperparameters": {"n_epochs": 2}, "onyx": {"epochs": 3}}, "onyx.epochs"),
        ({"seed": 1, "onyx": {"seed": 1}}, "onyx.seed"),
        ({"onyx": {"objective": "dpo"}}, "onyx.objective"),
        ({"onyx": {"max_length": 10**7}}, "onyx.max_length"),
        ({"onyx": {"rank": 1}}, "onyx.rank"),
        ({"onyx": {"webhook_url": "https://example.com"}}, "onyx.webhook_url"),
        ({"integrations": [{"type": "other"}]}, "integrations.0.type"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_an_invalid_field_is_named(client: TestClient, body: dict[str, Any], param: str) -> None:
    whole = {"model": "onyx/tiny", "training_file": upload(client)["id"]} | body
    assert refused(client.post("/v1/fine_tuning/jobs", json=whole))[0] == param


def test_a_webhook_must_be_a_public_https_url(home: Any) -> None:
    settings = Settings(home=home, embedded_runner=False, webhook_secret=SecretStr("s"))
    with service(settings) as client:
        whole = {"model": "onyx/tiny", "training_file": upload(client)["id"]}
        for url in (
            "http://example.com/",
            "https://127.0.0.1/",
            "https://[::1]/",
            "https://user@localhost/",
            "ftp://x",
        ):
            response = client.post("/v1/fine_tuning/jobs", json=whole | {"onyx": {"webhook_url": url}})
            assert refused(response) == ("onyx.webhook_url", "webhook_refused"), url


def test_jobs_are_listed_by_page_and_by_metadata(client: TestClient) -> None:
    marked = [create(client, metadata={"team": "a b", "n": str(n)})["id"] for n in range(2)]
    plain = create(client)["id"]
    page = client.get("/v1/fine_tuning/jobs", params={"limit": 2}).json()
    assert ([job["id"] for job in page["data"]], page["has_more"]) == ([plain, marked[1]], True)
    rest = client.get("/v1/fine_tuning/jobs", params={"after": marked[1]}).json()
    assert ([job["id"] for job in rest["data"]], rest["has_more"]) == ([marked[0]], False)

    def found(**params: str) -> list[str]:
        return [job["id"] for job in client.get("/v1/fine_tuning/jobs", params=params).json()["data"]]

    assert found(**{"metadata[team]": "a b"}) == marked[::-1]
    assert found(**{"metadata[team]": "a b", "metadata[n]": "0"}) == [marked[0]]
    assert found(**{"metadata[team]": "b"}) == []
    assert found(metadata="null") == [plain]
    assert refused(client.get("/v1/fine_tuning/jobs", params={"metadata": "x"}))[0] == "metadata"
    assert refused(client.get("/v1/fine_tuning/jobs", params={"after": "ftjob-x"}))[0] == "after"


def test_a_change_that_the_status_does_not_allow_is_a_400(client: TestClient) -> None:
    job = create(client)
    path = f"/v1/fine_tuning/jobs/{job['id']}"
    assert client.post(f"{path}/pause").json()["status"] == "paused"
    assert client.post(f"{path}/resume").json()["status"] == "validating_files"
    assert client.post(f"{path}/cancel").json()["status"] == "cancelled"
    for change in ("pause", "resume"):
        assert refused(client.post(f"{path}/{change}")) == ("fine_tuning_job_id", "invalid_status")
    assert refused(client.post("/v1/fine_tuning/jobs/ftjob-x/cancel"), 404)[0] == "fine_tuning_job_id"


def test_only_a_retry_finds_the_job_of_the_first_request(client: TestClient) -> None:
    body = {"model": "onyx/tiny", "training_file": upload(client)["id"]}

    def ask(**headers: str) -> str:
        response = client.post("/v1/fine_tuning/jobs", json=body, headers=headers)
        job_id: str = response.json()["id"]
        return job_id

    first = ask(**{"x-stainless-retry-count": "0"})
    assert ask(**{"x-stainless-retry-count": "1"}) == first
    second = ask()
    assert second != first
    assert ask(**{"x-stainless-retry-count": "2"}) == second
    keyed = ask(**{"Idempotency-Key": "k"})
    assert keyed not in (first, second)
    assert ask(**{"Idempotency-Key": "k", "x-stainless-retry-count": "1"}) == keyed
    other = client.post("/v1/fine_tuning/jobs", json=body | {"seed": 5}, headers={"Idempotency-Key": "k"})
    assert refused(other)[1] == "idempotency_conflict"


def test_the_operators_limits_apply_to_requests_and_defaults(home: Any) -> None:
    settings = Settings(home=home, embedded_runner=False, most_epochs=2, most_max_length=100, open_jobs_per_owner=1)
    with service(settings) as client:
        file = upload(client)["id"]
        whole = {"model": "onyx/tiny", "training_file": file}
        for body, param in (
            ({"hyperparameters": {"n_epochs": 3}}, "n_epochs"),
            ({"onyx": {"epochs": 3}}, "onyx.epochs"),
            ({"onyx": {"max_length": 101}}, "onyx.max_length"),
        ):
            assert refused(client.post("/v1/fine_tuning/jobs", json=whole | body))[0] == param
        job = create(client, training_file=file)
        assert job["hyperparameters"]["n_epochs"] == 2
        too_many = client.post("/v1/fine_tuning/jobs", json=whole)
        assert refused(too_many, 429)[1] == "quota_exceeded"
        assert too_many.headers["x-should-retry"] == "false"
    assert spec_of(home, job["id"]).data.max_length == 100
