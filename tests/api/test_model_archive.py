import io
import json
import tarfile
from pathlib import Path

from onyx.api.model_archive import CHUNK, rewritten_files, tar_stream


def test_the_archive_has_every_file_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "ünï.txt").write_text("hello")
    (tmp_path / "empty").touch()
    (tmp_path / "large").write_bytes(b"ab" * CHUNK)
    parts = list(tar_stream(tmp_path, "job"))
    assert max(map(len, parts)) <= CHUNK
    with tarfile.open(fileobj=io.BytesIO(b"".join(parts))) as archive:
        found = {member.name: member for member in archive.getmembers()}
        assert sorted(found) == ["job/deep/ünï.txt", "job/empty", "job/large"]
        assert archive.extractfile("job/large").read() == b"ab" * CHUNK  # type: ignore[union-attr]
        assert {(member.uid, member.uname, member.mode) for member in found.values()} == {(0, "", 0o644)}


def test_a_file_that_shrinks_while_it_is_sent_breaks_no_archive(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * (2 * CHUNK))
    (tmp_path / "b").write_text("b")
    stream = tar_stream(tmp_path, "job")
    parts = [next(stream)]
    (tmp_path / "a").write_bytes(b"x" * 10)
    parts += stream
    with tarfile.open(fileobj=io.BytesIO(b"".join(parts))) as archive:
        assert archive.getmember("job/a").size == 2 * CHUNK
        assert archive.extractfile("job/b").read() == b"b"  # type: ignore[union-attr]


def test_some_files_may_have_other_contents(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("of this host")
    (tmp_path / "b").write_text("b")
    parts = b"".join(tar_stream(tmp_path, "job", {tmp_path / "a": b"for others"}))
    with tarfile.open(fileobj=io.BytesIO(parts)) as archive:
        assert [archive.extractfile(name).read() for name in ("job/a", "job/b")] == [b"for others", b"b"]  # type: ignore[union-attr]


def test_an_adapter_names_its_base_as_the_request_did(tmp_path: Path) -> None:
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps({"base_model_name_or_path": "/srv/onyx/models/base", "r": 8}))
    (found,) = rewritten_files(tmp_path, "owner/base").items()
    assert found[0] == path
    assert json.loads(found[1]) == {"base_model_name_or_path": "owner/base", "r": 8}
    assert "/srv" in path.read_text()  # on this host it loads as it is


def test_a_whole_model_is_sent_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert rewritten_files(tmp_path, "owner/base") == {}
