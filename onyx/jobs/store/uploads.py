"""Files that owners uploaded, or that jobs wrote for them. Their names are in the store, their bytes in ONYX_HOME."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import CursorResult, Select, delete, func, or_, select, tuple_

from onyx.jobs.errors import BadValueError, DiskQuotaError
from onyx.jobs.ids import is_id
from onyx.jobs.store.database import MAX_NAMES, Concern, Transaction
from onyx.jobs.store.jobs import check_name, lock_owner
from onyx.jobs.store.tables import FileRow

SUFFIXES = (".jsonl", ".csv", ".parquet", ".txt", ".ndjson", ".json")
"""Endings of a file's name that say its format. Any other file is read as JSONL."""


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """A file as the store knows it."""

    id: str
    """Made by the server; also the name of the file on the disk."""

    owner: str
    """Who may use it."""

    purpose: str
    """fine-tune or fine-tune-results."""

    filename: str
    """The owner's name for it. Never used as a path here."""

    suffix: str
    """One of SUFFIXES."""

    bytes: int
    """Its size."""

    created_at: float
    """When it was stored completely."""

    expires_at: float | None
    """When housekeeping deletes it; None for never."""

    def path(self, home: Path) -> Path:
        """Where its bytes are."""
        return upload_path(home, self.id, self.suffix)


def upload_path(home: Path, file_id: str, suffix: str) -> Path:
    """Where the bytes of a file with this id are."""
    return home / "uploads" / f"{file_id}{suffix}"


def suffix_of(filename: str) -> str:
    """The format of a file, from the end of its name."""
    return next((suffix for suffix in SUFFIXES if filename.lower().endswith(suffix)), SUFFIXES[0])


class Uploads(Concern):
    """By id and owner; `owner` None is the operator."""

    async def put(
        self,
        file_id: str,
        owner: str,
        *,
        purpose: str,
        filename: str,
        size: int,
        expires_after: float | None = None,
        most_bytes: int | None = None,
    ) -> StoredFile:
        """Add a file whose bytes are in place, unless its owner's files would exceed `most_bytes` with it."""
        check_name("owner", owner)
        check_name("filename", filename)
        async with self._database.writing() as tx:
            await _check_quota(tx, owner, size, most_bytes)
            row = FileRow(
                id=file_id,
                owner=owner,
                purpose=purpose,
                filename=filename,
                suffix=suffix_of(filename),
                bytes=size,
                created_at=tx.now,
                expires_at=None if expires_after is None else tx.now + expires_after,
            )
            tx.session.add(row)
            return _to_file(row)

    async def existing(self, file_ids: Sequence[str]) -> frozenset[str]:
        """Those of the files that the store has."""
        found: set[str] = set()
        async with self._database.reading() as session:
            for start in range(0, len(file_ids), MAX_NAMES):
                names = file_ids[start : start + MAX_NAMES]
                found |= set(await session.scalars(select(FileRow.id).where(FileRow.id.in_(names))))
        return frozenset(found)

    async def get(self, file_id: str, owner: str | None = None) -> StoredFile | None:
        """The file; None if there is none, it has expired or it is another owner's."""
        if not is_id(file_id):
            return None
        async with self._database.reading() as session:
            now = await self._database.clock.now(session)
            row = await session.get(FileRow, file_id)
            if row is None or owner not in (None, row.owner) or (row.expires_at is not None and row.expires_at <= now):
                return None
            return _to_file(row)

    async def list(
        self,
        owner: str | None = None,
        *,
        purpose: str | None = None,
        after: str | None = None,
        limit: int = 100,
        oldest_first: bool = False,
    ) -> tuple[tuple[StoredFile, ...], bool]:
        """A page of files, and whether there are more."""
        cursor = await self.get(after, owner) if after is not None else None
        if after is not None and cursor is None:
            raise BadValueError(f"there is no file {after[:80]!r} to list after")
        async with self._database.reading() as session:
            now = await self._database.clock.now(session)
            query = _page_query(owner, purpose, cursor, limit, oldest_first, now)
            rows = (await session.scalars(query)).all()
        return tuple(_to_file(row) for row in rows[:limit]), len(rows) > limit

    async def delete(self, file_id: str, owner: str | None = None) -> bool:
        """Delete the file; whether there was one. The caller removes its bytes."""
        query = delete(FileRow).where(FileRow.id == file_id)
        if owner is not None:
            query = query.where(FileRow.owner == owner)
        async with self._database.writing() as tx:
            result = await tx.session.execute(query) if is_id(file_id) else None
            return isinstance(result, CursorResult) and result.rowcount == 1

    async def stored_bytes(self, owner: str) -> int:
        """The size of all files of an owner."""
        async with self._database.reading() as session:
            return int((await session.execute(_stored_bytes(owner))).scalar_one())

    async def expired(self) -> tuple[StoredFile, ...]:
        """Files whose `expires_at` has passed."""
        async with self._database.reading() as session:
            now = await self._database.clock.now(session)
            rows = await session.scalars(select(FileRow).where(FileRow.expires_at <= now).limit(1000))
            return tuple(_to_file(row) for row in rows)


def _stored_bytes(owner: str) -> Select[int]:
    return select(func.coalesce(func.sum(FileRow.bytes), 0)).where(FileRow.owner == owner)


async def _check_quota(tx: Transaction, owner: str, size: int, most: int | None) -> None:
    """Refuse a file beyond the quota. The owner's lock keeps two concurrent uploads from using the same rest."""
    if most is None:
        return
    await lock_owner(tx, owner)
    if (await tx.session.execute(_stored_bytes(owner))).scalar_one() + size > most:
        raise DiskQuotaError(
            f"{size:,} bytes are more than your disk quota has left: delete trainings or files that you no longer need"
        )


def _page_query(
    owner: str | None, purpose: str | None, after: StoredFile | None, limit: int, oldest_first: bool, now: float
) -> Select[FileRow]:
    """A page and one row more, which shows whether there is another page."""
    position = tuple_(FileRow.created_at, FileRow.id)
    query = select(FileRow).where(or_(FileRow.expires_at.is_(None), FileRow.expires_at > now)).limit(limit + 1)
    if oldest_first:
        query = query.order_by(FileRow.created_at, FileRow.id)
    else:
        query = query.order_by(FileRow.created_at.desc(), FileRow.id.desc())
    if owner is not None:
        query = query.where(FileRow.owner == owner)
    if purpose is not None:
        query = query.where(FileRow.purpose == purpose)
    if after is not None:
        cursor = tuple_(after.created_at, after.id)
        query = query.where(position > cursor if oldest_first else position < cursor)
    return query


def _to_file(row: FileRow) -> StoredFile:
    return StoredFile(
        id=row.id,
        owner=row.owner,
        purpose=row.purpose,
        filename=row.filename,
        suffix=row.suffix,
        bytes=row.bytes,
        created_at=row.created_at,
        expires_at=row.expires_at,
    )
