"""Rate limits, open streams and open jobs, counted for each caller."""

import asyncio

import pytest

from onyx.api.http.errors import ApiError
from onyx.api.http.rate_limit import ConcurrencyLimit, RateLimit
from onyx.settings import Settings
from tests.api.service import AT, make_key, service, settings


def test_each_caller_has_its_own_count() -> None:
    async def story() -> None:
        limit = RateLimit("2/minute", "requests")
        await limit.hit("ann")
        await limit.hit("ann")
        with pytest.raises(ApiError) as error:
            await limit.hit("ann")
        await limit.hit("bob")
        assert error.value.status_code == 429
        assert error.value.headers is not None
        assert 1 <= int(error.value.headers["Retry-After"]) <= 120

    asyncio.run(story())


@pytest.mark.parametrize("rate", ["", "often", "5", "x/minute"])
def test_an_invalid_rate_is_refused_with_an_example(rate: str) -> None:
    with pytest.raises(ValueError, match="120/minute"):
        RateLimit(rate, "requests")


def test_slots_are_released() -> None:
    limit = ConcurrencyLimit(1)
    for _ in range(3):
        with limit.slot("ann"), limit.slot("bob"), pytest.raises(ApiError, match="limit"):
            limit.check("ann")
    limit.check("ann")


def test_requests_and_plans_have_their_own_limits(here: Settings) -> None:
    tight = settings(here.home, rate_limit="4/hour", planning_rate_limit="0/hour")
    with service(tight) as client:
        assert client.post(f"{AT}/optimize", json={"action": "monitor"}).status_code == 200
        planned = client.post(f"{AT}/optimize", json={"action": "calculate", "model_name": "onyx/tiny"})
        assert planned.status_code == 429
        assert "plans" in planned.json()["detail"]
        assert client.get(f"{AT}/health").status_code == 200
        assert client.get(f"{AT}/stats").status_code == 200
        last = client.get(f"{AT}/stats")
        assert last.status_code == 429
        assert int(last.headers["Retry-After"]) > 0


def test_guessing_keys_is_limited_and_does_not_limit_other_callers(here: Settings) -> None:
    _, ann = make_key(here, "ann")
    with service(settings(here.home, rate_limit="3/hour")) as client:
        wrong = [client.get(f"{AT}/stats", headers={"Authorization": "Bearer no"}).status_code for _ in range(5)]
        assert wrong == [401, 401, 401, 429, 429]
        assert client.get(f"{AT}/stats", headers=ann).status_code == 200


def test_unfinished_jobs_are_limited(here: Settings) -> None:
    with service(settings(here.home, open_jobs_per_owner=1)) as client:
        body = {"model_name": "onyx/tiny", "dataset_config": {"texts": ["one"]}, "user_id": "u"}
        first = client.post(f"{AT}/training/with-accumulation", json=body)
        second = client.post(f"{AT}/training/large-batch", json=body)
        assert (first.status_code, second.status_code) == (202, 429)
        assert "cancel one" in second.json()["detail"]
        assert int(second.headers["Retry-After"]) > 0
        client.post(f"{AT}/training/{first.json()['training_id']}/cancel")
        assert client.post(f"{AT}/training/large-batch", json=body).status_code == 202
