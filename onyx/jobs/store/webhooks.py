"""Webhooks about ended jobs, written in the transaction that ends the job and kept until they are delivered."""

from dataclasses import dataclass

from sqlalchemy import delete, select

from onyx.jobs.ids import make_webhook_id
from onyx.jobs.status import JobStatus
from onyx.jobs.store import json_text
from onyx.jobs.store.database import Concern, Transaction
from onyx.jobs.store.tables import JobRow, WebhookRow

BACKOFF = (5.0, 30.0, 120.0, 600.0, 1800.0, 3600.0, 10800.0, 21600.0, 43200.0, 86400.0)
"""Seconds from one try to the next. After the last try, about two days later, the webhook is dropped."""

UNDER_WAY_SECONDS = 60.0
"""How long a runner that has claimed a delivery has for it, before another runner may claim it."""


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """One webhook for one receiver."""

    id: str
    """The same at every try, so that a receiver can drop duplicates."""

    job_id: str
    """The job that has ended."""

    status: JobStatus
    """The status in which it ended."""

    url: str | None
    """The receiver that the job named; None for the operator's."""

    created_at: float
    """When the job ended."""

    tries: int
    """This one included."""


def add_webhooks(tx: Transaction, job: JobRow, status: JobStatus) -> None:
    """Add one webhook for the operator, and one for the receiver that the job names."""
    own = json_text.load(job.spec).get("webhook_url")
    for url in (None, own) if own else (None,):
        tx.session.add(
            WebhookRow(
                id=make_webhook_id(),
                job_id=job.id,
                status=status,
                url=url,
                created_at=tx.now,
                tries=0,
                next_at=tx.now,
            )
        )


class Webhooks(Concern):
    """Each delivery is tried by one runner at a time, and at least once."""

    async def claim(self, *, operator: bool) -> Delivery | None:
        """Claim the next webhook that is due. If the operator has set no receiver, those for it are dropped."""
        async with self._database.writing() as tx:
            if not operator:
                await tx.session.execute(delete(WebhookRow).where(WebhookRow.url.is_(None)))
            due = select(WebhookRow).where(WebhookRow.next_at <= tx.now).order_by(WebhookRow.next_at).limit(1)
            row = (await tx.session.scalars(due.with_for_update(skip_locked=True))).one_or_none()
            if row is None:
                return None
            row.tries += 1
            row.next_at = tx.now + UNDER_WAY_SECONDS
            return _to_delivery(row)

    async def any_due(self) -> bool:
        """Whether a claim would find a webhook. Reads only, so it waits for no writer."""
        async with self._database.reading() as session:
            now = await self._database.clock.now(session)
            due = select(WebhookRow.id).where(WebhookRow.next_at <= now).limit(1)
            return (await session.scalars(due)).one_or_none() is not None

    async def report_delivered(self, delivery: Delivery) -> None:
        """The receiver has accepted it, or has refused it for good: drop it."""
        async with self._database.writing() as tx:
            await tx.session.execute(delete(WebhookRow).where(WebhookRow.id == delivery.id))

    async def retry_later(self, delivery: Delivery) -> bool:
        """Plan the next try; False after the last one, then it is dropped."""
        async with self._database.writing() as tx:
            row = await tx.session.get(WebhookRow, delivery.id, with_for_update=True)
            if row is None:
                return False
            if delivery.tries > len(BACKOFF):
                await tx.session.delete(row)
                return False
            row.next_at = tx.now + BACKOFF[delivery.tries - 1]
            return True


def _to_delivery(row: WebhookRow) -> Delivery:
    return Delivery(
        id=row.id,
        job_id=row.job_id,
        status=JobStatus(row.status),
        url=row.url,
        created_at=row.created_at,
        tries=row.tries,
    )
