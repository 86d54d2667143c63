"""Schemathesis over the whole OpenAPI: what fits the schema, what does not, and one request after the other.

No 5xx, no status that is not declared, no answer that does not fit its schema, no hang. Nothing trains, since there is
no runner; and nobody may plan, so that no request starts a process: what would be planned is a 429.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import FlakyStrategyDefinition, Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from onyx.api.app import create_app
from tests.acceptance.api_server import ApiServer, api_server
from tests.api.service import AT, BODY, make_key
from tests.api.service import settings as at
from tests.waiting import PATIENCE

CHECKS: list[Callable[..., Any]] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
LIMITS: dict[str, Any] = {
    "rate_limit": "1000000/second",
    "planning_rate_limit": "0/hour",
    "open_jobs_per_owner": 1_000_000,
}
SECONDS = PATIENCE
"""No request may take longer."""

WITH_ID = {"training_id": "$response.body#/training_id"}


def linked(schema: dict[str, Any]) -> dict[str, Any]:
    """What makes an id and what takes one, with links from the one to the others."""
    paths = {path: each for path, each in schema["paths"].items() if "{training_id}" in path or path == f"{AT}/config"}
    schema = copy.deepcopy(schema | {"paths": paths})
    targets = [each for path, methods in paths.items() if "{" in path for each in methods.values()]
    links = {each["operationId"]: {"operationId": each["operationId"], "parameters": WITH_ID} for each in targets}
    schema["paths"][f"{AT}/config"]["post"]["responses"]["200"]["links"] = links
    return schema


RAW = create_app().openapi()
SCHEMA = schemathesis.openapi.from_dict(RAW)
STORIES = schemathesis.openapi.from_dict(linked(RAW))
OPERATIONS = {each.ok().label: each.ok() for each in SCHEMA.get_all_operations() if isinstance(each, Ok)}
AnyCase = Case[Any]


class Session(requests.Session):
    """Nobody waits for more than a moment, nor for a stream that ends when a training does."""

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        return super().send(request, **options | {"timeout": SECONDS, "allow_redirects": False})


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ApiServer, Session]]:
    home: Path = tmp_path_factory.mktemp("fuzz") / "home"
    _, header = make_key(at(home), "ann")
    with api_server(home, embedded_runner=False, **LIMITS) as running, Session() as session:
        session.headers.update(header)
        yield running, session
        assert running.answers()
        assert "Traceback" not in running.log
        assert header["Authorization"].split()[1] not in running.log


def waits(asked: Any) -> bool:
    """Whether the service would wait for that long. What it must refuse is sent as it is."""
    try:
        return 0 <= float(asked) <= 3600
    except (TypeError, ValueError):
        return False


def call(case: AnyCase, service: tuple[ApiServer, Session], checks: list[Callable[..., Any]]) -> None:
    running, session = service
    if case.query and waits(case.query.get("wait")):
        case.query["wait"] = 0
    response = case.call(base_url=running.url, session=session)
    case.validate_response(response, checks=checks)


def fuzz(label: str, mode: GenerationMode, service: tuple[ApiServer, Session], examples: int) -> int:
    """How many requests were sent, each of them checked."""
    sent = 0
    strict = mode is GenerationMode.NEGATIVE and OPERATIONS[label].body  # a query may say more than anybody reads
    checks = CHECKS + ([negative_data_rejection] if strict else [])
    if label == "GET /readyz":  # without a runner it is not ready, and 503 is how it says so
        checks.remove(not_a_server_error)

    @given(case=OPERATIONS[label].as_strategy(generation_mode=mode))
    @settings(max_examples=examples, phases=(Phase.generate,), suppress_health_check=list(HealthCheck), database=None)
    def requests_of(case: AnyCase) -> None:
        nonlocal sent
        sent += 1
        call(case, service, checks)

    with suppress(Unsatisfiable):  # what takes nothing cannot be given the wrong thing
        requests_of()
    return sent


@pytest.mark.parametrize("label", OPERATIONS)
def test_what_fits_and_what_does_not(label: str, service: tuple[ApiServer, Session]) -> None:
    sent = {mode: fuzz(label, mode, service, 5) for mode in GenerationMode}
    assert sent[GenerationMode.POSITIVE] > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("label", OPERATIONS)
def test_the_same_in_thousands(label: str, mode: GenerationMode, service: tuple[ApiServer, Session]) -> None:
    sent = fuzz(label, mode, service, 150)
    assert sent or mode is GenerationMode.NEGATIVE


def run_in_order(service: tuple[ApiServer, Session], number: int, steps: int) -> int:
    """How many requests a few stories came to. They are the same for the same number, but which step is possible
    depends on what the service answered, so Hypothesis may find that it cannot repeat one; that ends these stories, and
    is nothing against the service."""
    running, session = service
    sent = 0
    machine = STORIES.as_state_machine()

    class Story(machine):  # type: ignore[misc, valid-type]
        def setup(self) -> None:
            """Every other time the story is one of a training, and not of a stored config."""
            made = session.post(f"{running.url}{AT}/training/with-accumulation", json=BODY) if number % 2 else None
            self.job = made.json()["training_id"] if made else None

        def call(self, case: AnyCase, **_: Any) -> Any:
            nonlocal sent
            sent += 1
            if self.job and case.path_parameters:
                case.path_parameters["training_id"] = self.job
            return case.call(base_url=running.url, session=session)

        def validate_response(self, response: Any, case: AnyCase, **_: Any) -> None:
            case.validate_response(response, checks=CHECKS)

    options = settings(
        max_examples=6,
        stateful_step_count=steps,
        phases=(Phase.generate,),
        derandomize=False,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    with suppress(FlakyStrategyDefinition):
        seed(number)(Story).run(settings=options)
    return sent


def test_one_request_after_the_other(service: tuple[ApiServer, Session]) -> None:
    assert sum(run_in_order(service, number, 8) for number in range(2)) > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_long_stories(service: tuple[ApiServer, Session]) -> None:
    assert sum(run_in_order(service, number, 20) for number in range(40)) > 0
