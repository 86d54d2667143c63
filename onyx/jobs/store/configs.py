"""Configs that an owner stored for later jobs."""

from typing import Any

from sqlalchemy import CursorResult, delete, func, select

from onyx.jobs.errors import QuotaExceededError
from onyx.jobs.ids import is_id, make_config_id
from onyx.jobs.records import StoredConfig
from onyx.jobs.store import json_text
from onyx.jobs.store.database import Concern, Transaction
from onyx.jobs.store.jobs import check_name, lock_owner
from onyx.jobs.store.tables import ConfigRow


class Configs(Concern):
    """By id and owner; `owner` None is the operator."""

    async def put(self, owner: str, config: dict[str, Any], *, most: int | None = None) -> StoredConfig:
        """Store a new config, unless its owner has `most` already."""
        check_name("owner", owner)
        text = json_text.dump(config)
        async with self._database.writing() as tx:
            await lock_owner(tx, owner)
            await _check_quota(tx, owner, most)
            row = ConfigRow(id=make_config_id(tx.now), owner=owner, config=text, created_at=tx.now, updated_at=tx.now)
            tx.session.add(row)
            return _to_config(row)

    async def get(self, config_id: str, owner: str | None = None) -> StoredConfig | None:
        """The config, unless there is none or it is another owner's."""
        if not is_id(config_id):
            return None
        async with self._database.reading() as session:
            row = await session.get(ConfigRow, config_id)
            return _to_config(row) if row is not None and owner in (None, row.owner) else None

    async def update(self, config_id: str, config: dict[str, Any], owner: str | None = None) -> StoredConfig | None:
        """Replace the whole config; None when this owner has no such config."""
        text = json_text.dump(config)
        async with self._database.writing() as tx:
            row = await tx.session.get(ConfigRow, config_id, with_for_update=True) if is_id(config_id) else None
            if row is None or owner not in (None, row.owner):
                return None
            row.config = text
            row.updated_at = tx.now
            return _to_config(row)

    async def delete(self, config_id: str, owner: str | None = None) -> bool:
        """Delete the config; whether there was one."""
        query = delete(ConfigRow).where(ConfigRow.id == config_id)
        if owner is not None:
            query = query.where(ConfigRow.owner == owner)
        async with self._database.writing() as tx:
            result = await tx.session.execute(query) if is_id(config_id) else None
            return isinstance(result, CursorResult) and result.rowcount == 1

    async def delete_all(self, owner: str | None) -> int:
        """Delete all configs of an owner; how many there were."""
        query = delete(ConfigRow)
        async with self._database.writing() as tx:
            result = await tx.session.execute(query if owner is None else query.where(ConfigRow.owner == owner))
            return result.rowcount if isinstance(result, CursorResult) else 0


async def _check_quota(tx: Transaction, owner: str, most: int | None) -> None:
    if most is None:
        return
    query = select(func.count()).where(ConfigRow.owner == owner)
    if (await tx.session.execute(query)).scalar_one() >= most:
        raise QuotaExceededError(
            f"{most:,} configs are stored, which is the limit: delete one that you no longer need (DELETE /cleanup/ID)"
        )


def _to_config(row: ConfigRow) -> StoredConfig:
    return StoredConfig(
        id=row.id,
        owner=row.owner,
        config=json_text.load(row.config),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
