import asyncio

import pytest
from sqlalchemy import select

from onyx.jobs.errors import QuotaExceededError
from onyx.jobs.records import StoredConfig
from onyx.jobs.store import Store
from onyx.jobs.tables import ConfigRow
from tests.jobs.world import World


async def list_configs(store: Store, owner: str) -> tuple[StoredConfig, ...]:
    """An owner's configs, oldest first."""
    query = select(ConfigRow.id).where(ConfigRow.owner == owner).order_by(ConfigRow.created_at, ConfigRow.id)
    async with store.reading() as session:
        ids = (await session.scalars(query)).all()
    found = [await store.get_config(config_id, owner) for config_id in ids]
    return tuple(each for each in found if each is not None)


async def test_a_stored_config_survives_a_restart(world: World) -> None:
    stored = await world.store.put_config("ann", {"accumulation_steps": 4, "gradient_clipping": None})
    assert stored.id.startswith("accumulation_")
    again = world.another()
    assert await again.get_config(stored.id, "ann") == stored
    await again.close()


async def test_configs_belong_to_their_owners(store: Store) -> None:
    stored = await store.put_config("ann", {"n": 1})
    assert await store.get_config(stored.id, "bob") is None
    assert await store.update_config(stored.id, {"n": 2}, "bob") is None
    assert not await store.delete_config(stored.id, "bob")
    assert await store.delete_configs("bob") == 0
    assert await store.get_config(stored.id) == stored


async def test_change_list_and_forget(store: Store) -> None:
    first, second = [await store.put_config("ann", {"n": n}) for n in (1, 2)]
    changed = await store.update_config(first.id, {"n": 9}, "ann")
    assert changed is not None
    assert (changed.config, changed.created_at) == ({"n": 9}, first.created_at)
    assert changed.updated_at >= first.updated_at
    assert await list_configs(store, "ann") == (changed, second)
    assert await store.delete_config(first.id, "ann")
    assert not await store.delete_config(first.id, "ann")
    assert not await store.delete_config("../x")
    assert await store.update_config("../x", {}) is None
    assert await store.delete_configs("ann") == 1
    assert await list_configs(store, "ann") == ()


async def test_an_owner_has_so_many_and_no_more(store: Store) -> None:
    made = await asyncio.gather(*(store.put_config("ann", {"n": n}, most=3) for n in range(8)), return_exceptions=True)
    refused = [each for each in made if isinstance(each, QuotaExceededError)]
    assert (len(refused), len(await list_configs(store, "ann"))) == (5, 3)
    assert "3 configs are stored" in str(refused[0])
    await store.put_config("bob", {"n": 1}, most=3)
    assert await store.delete_config((await list_configs(store, "ann"))[0].id, "ann")
    await store.put_config("ann", {"n": 9}, most=3)
    with pytest.raises(QuotaExceededError):
        await store.put_config("ann", {"n": 10}, most=3)
