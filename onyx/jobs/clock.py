"""What time it is, by the one clock that all hosts share: the database's."""

from sqlalchemy import Double, func, literal_column, select
from sqlalchemy import cast as sql_cast
from sqlalchemy.ext.asyncio import AsyncSession

_SQLITE = literal_column("(julianday('now') - 2440587.5) * 86400.0", Double)
_POSTGRESQL = sql_cast(func.extract("epoch", func.clock_timestamp()), Double)


class DatabaseClock:
    """Seconds since the epoch."""

    async def now(self, session: AsyncSession) -> float:
        """Read anew at every call, also inside of one transaction."""
        expression = _SQLITE if session.get_bind().dialect.name == "sqlite" else _POSTGRESQL
        now: float = (await session.execute(select(expression))).scalar_one()
        return now
