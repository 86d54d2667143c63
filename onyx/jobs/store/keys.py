"""API keys: the secret is shown once, at creation, and only its hash is stored."""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import select

from onyx.jobs.ids import is_id, make_key_id
from onyx.jobs.store.database import Concern
from onyx.jobs.store.jobs import check_name
from onyx.jobs.store.tables import KeyRow

_PREFIX = "onyx_"
_SECRET_BYTES = 32
"""Random bytes of a secret: too many to guess, so a plain hash is enough."""


class Scope(StrEnum):
    """What a key gives access to."""

    USER = "user"
    """The jobs and files of its owner."""

    ADMIN = "admin"
    """The jobs and files of all owners."""


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """A key as an operator sees it, without its secret."""

    id: str
    """Made by the server; names the key and gives no access."""

    name: str
    """What it is for, in the operator's words."""

    owner: str
    """The owner of the jobs that it creates."""

    scope: Scope
    """What it gives access to."""

    secret_hash: str
    """SHA-256 of its secret."""

    created_at: float
    """When it was made."""

    revoked_at: float | None
    """When it stopped working."""

    def opens(self, secret: str) -> bool:
        """Whether `secret` is this key's and the key is not revoked. Takes the same time for a wrong secret."""
        return self.revoked_at is None and hmac.compare_digest(self.secret_hash, digest(secret))


def digest(secret: str) -> str:
    """What the store keeps of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


class Keys(Concern):
    """The keys of this service. While there is none, any client on this host has access."""

    async def create(self, name: str, owner: str, scope: Scope = Scope.USER) -> tuple[ApiKey, str]:
        """A new key and its secret. The secret is returned only here."""
        check_name("the key's name", name)
        check_name("owner", owner)
        secret = _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
        async with self._database.writing() as tx:
            row = KeyRow(
                id=make_key_id(),
                name=name,
                owner=owner,
                scope=scope,
                secret_hash=digest(secret),
                created_at=tx.now,
            )
            tx.session.add(row)
            return _to_key(row), secret

    async def list(self) -> tuple[ApiKey, ...]:
        """All keys, revoked ones too, oldest first."""
        async with self._database.reading() as session:
            rows = await session.scalars(select(KeyRow).order_by(KeyRow.created_at, KeyRow.id))
            return tuple(_to_key(row) for row in rows)

    async def revoke(self, key_id: str) -> bool:
        """Revoke the key; whether there was such a key and it was valid until now."""
        async with self._database.writing() as tx:
            row = await tx.session.get(KeyRow, key_id, with_for_update=True) if is_id(key_id) else None
            if row is None or row.revoked_at is not None:
                return False
            row.revoked_at = tx.now
            return True


def _to_key(row: KeyRow) -> ApiKey:
    return ApiKey(
        id=row.id,
        name=row.name,
        owner=row.owner,
        scope=Scope(row.scope),
        secret_hash=row.secret_hash,
        created_at=row.created_at,
        revoked_at=row.revoked_at,
    )
