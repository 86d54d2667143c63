"""Schemathesis over the whole OpenAPI schema: valid requests, invalid requests, and sequences of requests.

No 5xx, no undeclared status, no answer that violates its schema, no hang. Nothing trains, because there is no runner;
planning is limited to zero requests (429), so that no request starts a process.
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
"""The longest that a request may take."""

WITH_ID = {"training_id": "$response.body#/training_id"}


def linked(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of the operations that make or take a training id, with links from the former to the latter."""
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
    """Requests with a time-out, also for streams, and without redirects."""

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
    """Whether the service would accept this `wait`. Values that it must refuse are sent unchanged."""
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
    """Send generated requests, check each answer, and return how many were sent."""
    sent = 0
    strict = mode is GenerationMode.NEGATIVE and OPERATIONS[label].body  # unknown query parameters are ignored
    checks = CHECKS + ([negative_data_rejection] if strict else [])
    if label == "GET /readyz":  # without a runner it answers 503
        checks.remove(not_a_server_error)

    @given(case=OPERATIONS[label].as_strategy(generation_mode=mode))
    @settings(max_examples=examples, phases=(Phase.generate,), suppress_health_check=list(HealthCheck), database=None)
    def requests_of(case: AnyCase) -> None:
        nonlocal sent
        sent += 1
        call(case, service, checks)

    with suppress(Unsatisfiable):  # an operation without input has no invalid requests
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
    """Run sequences of requests, and return how many requests were sent.

    The same `number` gives the same sequences. The next request depends on the service's answers, so Hypothesis may
    find that it cannot repeat a sequence. That ends these sequences, and is no failure of the service.
    """
    running, session = service
    sent = 0
    machine = STORIES.as_state_machine()

    class Story(machine):  # type: ignore[misc, valid-type]
        def setup(self) -> None:
            """For odd numbers the sequence is about a training, for even ones about a stored config."""
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
