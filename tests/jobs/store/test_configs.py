import asyncio

import pytest
from sqlalchemy import select

from onyx.jobs.errors import QuotaExceededError
from onyx.jobs.records import StoredConfig
from onyx.jobs.store.store import Store
from onyx.jobs.store.tables import ConfigRow
from tests.jobs.store_harness import StoreHarness


async def list_configs(store: Store, owner: str) -> tuple[StoredConfig, ...]:
    """An owner's configs, oldest first."""
    query = select(ConfigRow.id).where(ConfigRow.owner == owner).order_by(ConfigRow.created_at, ConfigRow.id)
    async with store.database.reading() as session:
        ids = (await session.scalars(query)).all()
    found = [await store.configs.get(config_id, owner) for config_id in ids]
    return tuple(each for each in found if each is not None)


async def test_a_stored_config_survives_a_restart(harness: StoreHarness) -> None:
    stored = await harness.store.configs.put("ann", {"accumulation_steps": 4, "gradient_clipping": None})
    assert stored.id.startswith("accumulation_")
    again = harness.open_again()
    assert await again.configs.get(stored.id, "ann") == stored
    await again.close()


async def test_configs_belong_to_their_owners(store: Store) -> None:
    stored = await store.configs.put("ann", {"n": 1})
    assert await store.configs.get(stored.id, "bob") is None
    assert await store.configs.update(stored.id, {"n": 2}, "bob") is None
    assert not await store.configs.delete(stored.id, "bob")
    assert await store.configs.delete_all("bob") == 0
    assert await store.configs.get(stored.id) == stored


async def test_change_list_and_forget(store: Store) -> None:
    first, second = [await store.configs.put("ann", {"n": n}) for n in (1, 2)]
    changed = await store.configs.update(first.id, {"n": 9}, "ann")
    assert changed is not None
    assert (changed.config, changed.created_at) == ({"n": 9}, first.created_at)
    assert changed.updated_at >= first.updated_at
    assert await list_configs(store, "ann") == (changed, second)
    assert await store.configs.delete(first.id, "ann")
    assert not await store.configs.delete(first.id, "ann")
    assert not await store.configs.delete("../x")
    assert await store.configs.update("../x", {}) is None
    assert await store.configs.delete_all("ann") == 1
    assert await list_configs(store, "ann") == ()


async def test_an_owner_has_at_most_so_many_configs(store: Store) -> None:
    made = await asyncio.gather(*(store.configs.put("ann", {"n": n}, most=3) for n in range(8)), return_exceptions=True)
    refused = [each for each in made if isinstance(each, QuotaExceededError)]
    assert (len(refused), len(await list_configs(store, "ann"))) == (5, 3)
    assert "3 configs are stored" in str(refused[0])
    await store.configs.put("bob", {"n": 1}, most=3)
    assert await store.configs.delete((await list_configs(store, "ann"))[0].id, "ann")
    await store.configs.put("ann", {"n": 9}, most=3)
    with pytest.raises(QuotaExceededError):
        await store.configs.put("ann", {"n": 10}, most=3)
