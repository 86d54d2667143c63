"""The OpenAPI schema is complete, and its examples run."""

import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from onyx.api.app import create_app
from onyx.settings import Settings
from tests.api.service import AT, settings
from tests.planner_cache import share_planner_cache

OPERATIONS = {
    "alive", "ready", "metrics", "health", "get_stats", "list_stats", "performance_metrics",
    "performance_recommendations", "create_config", "get_config", "update_config", "train_with_accumulation",
    "train_large_batch", "list_trainings", "get_training", "cancel_training", "pause_training", "resume_training",
    "delete_training", "list_events", "get_model", "get_logs", "calculate_batch_size", "recommend_batch_size",
    "optimize", "calculate_effective_batch_size", "calculate_accumulation_steps", "adjust_rate", "clean_up",
    "clean_up_all",
}  # fmt: skip
"""Clients are generated from these names: removing or changing one breaks them."""


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return create_app(settings(tmp_path_factory.mktemp("home"))).openapi()


def operations(schema: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(path, method, each) for path, methods in schema["paths"].items() for method, each in methods.items()]


def test_operation_ids_are_stable(schema: dict[str, Any]) -> None:
    ids = [operation["operationId"] for _, _, operation in operations(schema)]
    assert len(set(ids)) == len(ids)
    for path, method, operation in operations(schema):
        suffix = re.sub(r"\W", "_", f"{path}_{method}")
        assert operation["operationId"].endswith(suffix)
    names = {
        each["operationId"].removesuffix(re.sub(r"\W", "_", f"{path}_{method}"))
        for path, method, each in operations(schema)
    }
    assert names >= OPERATIONS


def test_every_answer_has_a_schema(schema: dict[str, Any]) -> None:
    for path, method, operation in operations(schema):
        for status, answer in operation["responses"].items():
            assert answer["description"], (path, method, status)
            assert answer.get("content"), (path, method, status)
            for kind, content in answer["content"].items():
                assert content.get("schema"), (path, method, status, kind)


def test_errors_are_declared_where_they_can_happen(schema: dict[str, Any]) -> None:
    for path, method, operation in operations(schema):
        declared = set(operation["responses"])
        if path in ("/healthz", "/readyz"):
            continue
        assert {"401", "403", "429", "503"} <= declared, (path, method)
        if path.startswith(AT):
            assert ("413" in declared) == ("requestBody" in operation), (path, method)
        assert ("404" in declared) or "{" not in path or "/cleanup/" in path, (path, method)
        assert "HTTPValidationError" not in str(operation), (path, method)
        assert "500" not in declared
        assert operation["security"], (path, method)


def test_everything_is_described(schema: dict[str, Any]) -> None:
    for path, method, operation in operations(schema):
        assert operation.get("description"), (path, method)


def test_each_example_runs(schema: dict[str, Any], here: Settings) -> None:
    """Plans are made by a helper process, as they are in the service."""
    share_planner_cache(here.home)
    ran = 0
    with TestClient(create_app(here)) as client:
        stored = client.post(f"{AT}/config", json={}).json()["training_id"]
        for path, method, operation in operations(schema):
            if "requestBody" not in operation or not path.startswith(AT):
                continue
            reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            examples = schema["components"]["schemas"][reference.rsplit("/", 1)[1]]["examples"]
            assert examples
            for example in examples:
                answer = client.request(method, path.replace("{training_id}", stored), json=example)
                assert answer.status_code in (200, 202), (path, answer.text)
                ran += 1
    assert ran >= 6


def test_the_docs_lead_to_a_first_job(client: TestClient) -> None:
    page = client.get("/docs")
    assert page.status_code == 200
    assert "swagger" in page.text.lower()
    schema = client.get("/openapi.json").json()
    assert "/gradient-accumulation/training/with-accumulation" in schema["info"]["description"]
    assert schema["components"]["securitySchemes"]["API key"]["scheme"] == "bearer"


def test_no_path_is_answered_twice(client: TestClient) -> None:
    assert client.get(f"{AT}/training/").status_code == 404
