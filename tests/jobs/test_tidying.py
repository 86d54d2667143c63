from pathlib import Path

from onyx.jobs.ids import make_file_id
from onyx.jobs.tidying import remove_expired_files
from onyx.jobs.uploads import upload_path
from onyx.settings import Settings
from tests.jobs.world import World


async def test_files_go_when_their_time_is_over(world: World, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    ids = []
    for seconds in (100.0, None):
        file_id = make_file_id()
        ids.append(file_id)
        path = upload_path(tmp_path, file_id, ".jsonl")
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")
        await world.store.put_file(
            file_id, "ann", purpose="fine-tune", filename="a.jsonl", size=2, expires_after=seconds
        )
    assert await remove_expired_files(world.store, settings) == 0
    world.clock.ahead += 101
    assert await world.store.get_file(ids[0]) is None  # not seen any more, even before it is removed
    assert await remove_expired_files(world.store, settings) == 1
    assert [path.stem for path in (tmp_path / "uploads").iterdir()] == [ids[1]]
