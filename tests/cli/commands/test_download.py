import io
import tarfile
from pathlib import Path

import pytest

from onyx.cli.commands.download import ChunkReader, _unpack


def tar_of(*names: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 4
            tar.addfile(info, io.BytesIO(b"data"))
    return out.getvalue()


def chunks(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize("size", [7, 512, 1 << 20])
def test_chunks_of_any_size_become_files(tmp_path: Path, size: int) -> None:
    _unpack(iter(chunks(tar_of("job/a.txt", "job/b/c.txt"), size)), tmp_path)
    assert (tmp_path / "a.txt").read_text() == "data"
    assert (tmp_path / "b" / "c.txt").read_text() == "data"


def test_no_file_is_written_outside_of_the_folder(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    with pytest.raises(tarfile.TarError):
        _unpack(iter([tar_of("job/../../outside.txt")]), inside)
    assert not (tmp_path / "outside.txt").exists()


def test_a_stream_that_is_cut_off_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(tarfile.TarError):
        _unpack(iter([tar_of("job/a.txt")[:515]]), tmp_path)


def test_chunks_are_read_to_the_end() -> None:
    assert ChunkReader(iter([b"ab", b"cde"])).read() == b"abcde"
