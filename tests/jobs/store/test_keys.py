import inspect

import pytest
from sqlalchemy import text

from onyx.jobs.errors import BadValueError
from onyx.jobs.store.keys import ApiKey, Scope, digest
from onyx.jobs.store.store import Store
from tests.jobs.store_harness import StoreHarness


async def test_a_secret_is_returned_once_and_stored_hashed(harness: StoreHarness) -> None:
    key, secret = await harness.store.keys.create("laptop", "ann")
    assert secret.startswith("onyx_")
    assert len(secret) > 40
    assert key.opens(secret)
    assert key.scope is Scope.USER
    async with harness.store.database.engine.connect() as connection:
        row = (await connection.execute(text("select * from api_key"))).one()
    assert secret not in str(row)
    assert row.secret_hash == digest(secret) == key.secret_hash


async def test_each_secret_opens_only_its_own_key(store: Store) -> None:
    made = [await store.keys.create("n", "ann", Scope.ADMIN) for _ in range(5)]
    for key, _ in made:
        assert [key.opens(secret) for _, secret in made].count(True) == 1
        assert not key.opens("")
        assert not key.opens(key.secret_hash)
    assert await store.keys.list() == tuple(sorted((key for key, _ in made), key=lambda key: (key.created_at, key.id)))


async def test_a_revoked_key_opens_nothing_in_any_process(harness: StoreHarness) -> None:
    key, secret = await harness.store.keys.create("laptop", "ann")
    assert await harness.store.keys.revoke(key.id)
    assert not await harness.store.keys.revoke(key.id)
    assert not await harness.store.keys.revoke("key-unknown")
    assert not await harness.store.keys.revoke("'; --")
    again = harness.open_again()
    (listed,) = await again.keys.list()
    assert listed.revoked_at is not None
    assert not listed.opens(secret)
    await again.close()


@pytest.mark.parametrize("name", ["", "x" * 256, "line\nbreak", "nul\x00"])
async def test_names_are_short_and_printable(store: Store, name: str) -> None:
    with pytest.raises(BadValueError):
        await store.keys.create(name, "ann")
    with pytest.raises(BadValueError):
        await store.keys.create("laptop", name)


def test_secrets_are_compared_in_constant_time() -> None:
    """A test cannot measure this reliably, so it reads the code."""
    assert "hmac.compare_digest" in inspect.getsource(ApiKey.opens)
