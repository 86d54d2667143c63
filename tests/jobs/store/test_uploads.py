import asyncio
from pathlib import Path

import pytest

from onyx.jobs.errors import BadValueError, DiskQuotaError
from onyx.jobs.ids import make_file_id
from onyx.jobs.store.store import Store
from onyx.jobs.store.uploads import SUFFIXES, StoredFile, suffix_of
from tests.jobs.store_harness import StoreHarness


async def put(store: Store, owner: str = "ann", filename: str = "train.jsonl", size: int = 10) -> StoredFile:
    return await store.uploads.put(make_file_id(), owner, purpose="fine-tune", filename=filename, size=size)


async def test_a_file_belongs_to_its_owner(store: Store) -> None:
    file = await put(store)
    assert await store.uploads.get(file.id, "ann") == await store.uploads.get(file.id) == file
    assert await store.uploads.get(file.id, "bob") is None
    assert not await store.uploads.delete(file.id, "bob")
    assert await store.uploads.list("bob") == ((), False)
    assert await store.uploads.delete(file.id, "ann")
    assert await store.uploads.get(file.id) is None


async def test_concurrent_uploads_share_the_rest_of_the_quota(store: Store) -> None:
    async def one() -> StoredFile:
        return await store.uploads.put(make_file_id(), "ann", purpose="p", filename="f", size=40, most_bytes=100)

    made = await asyncio.gather(*(one() for _ in range(6)), return_exceptions=True)
    assert [type(each) for each in made].count(DiskQuotaError) == 4
    assert await store.uploads.stored_bytes("ann") == 80


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/cron.d/x.csv", "a/../../b.parquet", "~/.ssh/id", "x" * 255, "%2e%2e"]
)
async def test_no_name_becomes_a_path(store: Store, name: str) -> None:
    file = await put(store, filename=name)
    home = Path("/srv/onyx")
    assert file.path(home) == home / "uploads" / f"{file.id}{file.suffix}"
    assert file.suffix in SUFFIXES


@pytest.mark.parametrize("name", ["", "x" * 256, "a\x00b", "a\nb"])
async def test_names_are_short_and_printable(store: Store, name: str) -> None:
    with pytest.raises(BadValueError):
        await put(store, filename=name)


@pytest.mark.parametrize("file_id", ["../x", "file-", "", "a\x00", "file-" + "A" * 24])
async def test_text_that_is_no_id_is_never_looked_up(store: Store, file_id: str) -> None:
    assert await store.uploads.get(file_id) is None
    assert not await store.uploads.delete(file_id)
    with pytest.raises(BadValueError):
        await store.uploads.list(after=file_id)


async def test_pages_and_sums(store: Store) -> None:
    files = [await put(store, size=size) for size in (1, 2, 3)]
    await put(store, "bob", size=100)
    assert await store.uploads.stored_bytes("ann") == 6
    assert await store.uploads.stored_bytes("eve") == 0
    page, more = await store.uploads.list("ann", limit=2, oldest_first=True)
    rest, done = await store.uploads.list("ann", limit=2, oldest_first=True, after=page[-1].id)
    assert {file.id for file in page + rest} == {file.id for file in files}
    assert (more, done) == (True, False)
    assert await store.uploads.list("ann", purpose="other") == ((), False)
    with pytest.raises(BadValueError):
        await store.uploads.list("bob", after=files[0].id)


async def test_an_expired_file_is_not_found(harness: StoreHarness) -> None:
    store = harness.store
    file = await store.uploads.put(make_file_id(), "ann", purpose="p", filename="f", size=1, expires_after=60)
    assert await store.uploads.get(file.id) == file
    harness.clock.ahead += 61
    assert await store.uploads.get(file.id) is None
    assert await store.uploads.list("ann") == ((), False)
    assert [each.id for each in await store.uploads.expired()] == [file.id]


@pytest.mark.parametrize(
    ("name", "suffix"), [("a.CSV", ".csv"), ("a.parquet", ".parquet"), ("a.exe", ".jsonl"), ("", ".jsonl")]
)
def test_a_suffix_is_one_of_the_known_ones(name: str, suffix: str) -> None:
    assert suffix_of(name) == suffix
